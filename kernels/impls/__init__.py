"""The impls that run segments of a chain; `all_impls` in registry.py lists them."""
