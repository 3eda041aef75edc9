"""The same tiny ViT behind other servers, each in a venv of its own, measured by the same client with the same rows."""
