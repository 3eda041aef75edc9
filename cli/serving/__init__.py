"""The commands that serve and ask: serve, config, keys and classify."""
