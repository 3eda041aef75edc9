"""Kernels on the levels of images."""
