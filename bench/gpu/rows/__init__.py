"""The rows of the benchmark: candidates checked against float64, then timed in turns."""
