"""Decoding on the GPU: whether it is right and isolated, how fast it is, and what a server makes of it."""
