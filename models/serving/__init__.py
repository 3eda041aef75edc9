"""The forms in which a model is served: packed, fused, traced or captured as CUDA graphs."""
