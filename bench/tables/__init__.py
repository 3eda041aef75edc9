"""Tables that are committed: docs/models.md, models/architectures/timm_models.json and README's are made here."""
