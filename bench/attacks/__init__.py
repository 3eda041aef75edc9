"""Attacks on a live server, and what good requests notice of them."""
