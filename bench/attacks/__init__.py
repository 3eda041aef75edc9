"""Attacks on a live server, and measurements of what they cost it and its other clients."""
