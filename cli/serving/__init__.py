"""The commands that serve and classify: serve, config, keys and classify."""
