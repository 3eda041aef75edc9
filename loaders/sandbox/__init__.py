"""Processes that decode what no reader of our own has bounded: a hostile image costs one of them, never the service."""
