"""Triton kernels: Monarch layers of any shape in two launches."""
