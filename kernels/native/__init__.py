"""Builds and loads the library of CUDA kernels of csrc, and defines its operators."""
