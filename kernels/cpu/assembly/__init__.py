"""Assembles programs for the CPU kernels: orders of channels, packed weights, steps and their buffers."""
