"""The `milkweed` command: one file a command, nothing heavy imported before a command runs."""

from .main import main

__all__ = ["main"]
