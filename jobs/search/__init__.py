"""The search for a model on the frontier of accuracy and measured speed."""
