"""Training a compressed model to answer as the dense one does."""
