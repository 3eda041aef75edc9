"""The architectures: our own, and those of timm that milkweed serves."""
