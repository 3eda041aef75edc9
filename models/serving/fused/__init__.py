"""The fused forward for GPUs: a loaded model is taken apart into chains that the kernels run."""
