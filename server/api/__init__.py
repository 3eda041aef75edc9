"""The HTTP routes, one noun a file."""
