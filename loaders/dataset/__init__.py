"""Image files read as batches, for evaluation and for training."""
