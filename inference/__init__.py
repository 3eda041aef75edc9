"""Inference joins a loader and a model on one device: encoded images in, classes out; no HTTP, no queue."""
