"""The bundle format: a folder that holds a model whole."""
