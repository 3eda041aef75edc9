"""Shares a budget out among the layers of a model, by what each one's compression does to the answers."""
