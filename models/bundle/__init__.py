"""The bundle format: one folder that holds everything of a model."""
