"""Reads folders that the transformers library wrote as models of timm, without that library.

`model_card` reads config.json: `families` makes timm's arguments of it, `keys` timm's keys of the weights', and
`images` reads preprocessor_config.json.
"""
