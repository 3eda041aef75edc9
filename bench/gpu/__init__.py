"""The benchmark of the GPU: `python -m milkweed.bench.gpu`; `main` of driver.py says what it does."""
