"""milkweed.server."""
