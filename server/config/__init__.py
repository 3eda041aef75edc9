"""Settings, where each value came from, and the limits of one model."""
