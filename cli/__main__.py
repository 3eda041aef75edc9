"""`python -m milkweed.cli`: the command, where it is not installed beside this Python."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
