"""The parts of `bench/gpu.py`: ceilings, timers, rows, decoding and the report."""
