"""Tables that are committed: docs/models.md and models/architectures/timm_models.json are made here."""
