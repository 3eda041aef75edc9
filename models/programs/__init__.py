"""Models as programs for the CPU kernels: made from torch's, quantised, kept in files, run without torch."""
