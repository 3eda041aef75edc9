"""Holds the HTTP app and its routes, one subject a file, and the page's files in `static/`."""
