"""The nearest structured matrices to dense ones (D2S), and the dense ones that structured ones are equal to (S2D)."""
