"""Scripts that run in the peers' own environments: they know nothing of milkweed but the weights file."""
