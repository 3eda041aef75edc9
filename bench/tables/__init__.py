"""Tables that are committed: models/architectures/timm_models.json and README's are made here."""
