"""Runs the benchmark of the GPU: `python -m milkweed.bench.gpu --help`."""

from .command import main

if __name__ == "__main__":
    raise SystemExit(main())
