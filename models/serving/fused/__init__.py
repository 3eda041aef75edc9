"""The fused forward: a loaded model taken apart into chains that the kernels run. Used where there is a GPU."""
