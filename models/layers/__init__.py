"""Linear layers with a structured weight, and attention with separate projections."""
