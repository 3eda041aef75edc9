"""Linear classifiers on a model's embedding: their file, and how they are fitted to labelled images."""
