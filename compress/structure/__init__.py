"""Structured layers: which of them, fitted to what images give, and what they cost on this machine."""
