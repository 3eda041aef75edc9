"""The compiled CUDA kernels of csrc: building the library, loading it, and its operators."""
