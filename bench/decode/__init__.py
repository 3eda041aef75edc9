"""The decode benchmark: ways from encoded images to model input, timed side by side."""
