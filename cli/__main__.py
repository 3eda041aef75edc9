"""Runs the command as `python -m milkweed.cli`, where its script is not installed beside this Python."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
