"""milkweed.bench."""
