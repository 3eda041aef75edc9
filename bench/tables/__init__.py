"""Tables that are committed: docs/models.md and models/timm_models.json are made here."""
