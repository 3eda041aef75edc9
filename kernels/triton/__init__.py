"""The Triton engine: Monarch layers of any shape in two launches."""
