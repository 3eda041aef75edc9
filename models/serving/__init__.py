"""The forms in which a model is served: packed, fused, as a TorchScript graph or as CUDA graphs."""
