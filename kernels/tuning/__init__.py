"""Plans of chains, the tuner that measures them, and its cache."""
