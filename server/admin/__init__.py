"""The admin API: models loaded and unloaded, and aliases, on a port of its own."""
