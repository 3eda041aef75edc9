"""The engine: one thread for each device, which decodes, runs the forward and delivers."""
