"""The engines that run segments of a chain; `all_engines` in registry.py lists them."""
