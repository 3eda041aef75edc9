"""The impls: each is one way to run segments of a chain. `all_impls` in all.py lists them."""
