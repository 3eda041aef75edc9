"""Studies whose results stand in docs/ and bench/results/: one script each."""
