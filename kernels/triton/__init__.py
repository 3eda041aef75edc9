"""The Triton impl: Monarch layers of any shape in two launches."""
