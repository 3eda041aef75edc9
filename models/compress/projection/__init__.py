"""Fits one structured matrix to one dense linear layer, with the statistics of its inputs or without."""
