"""The `milkweed` command: one file for each command; nothing heavy is imported before a command runs."""

from .main import main

__all__ = ["main"]
