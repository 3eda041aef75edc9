"""Scripts that run in the peers' own environments: they know of milkweed only a state dict or a bundle's graph."""
