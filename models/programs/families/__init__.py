"""Programs by family: models that are no plain ViT, from the parts that all of them share."""
