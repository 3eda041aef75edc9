"""The parts of `bench/gpu.py`: ceilings, timers, rows and the report."""
