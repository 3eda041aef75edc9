"""The GPU benchmark: checks, times and ratios of kernels, models and image decoding."""
