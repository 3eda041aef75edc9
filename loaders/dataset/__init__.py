"""Folders of images read for evaluation and for training."""
