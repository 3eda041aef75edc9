"""Compresses a dense model by photographs: recipes, the models made of them, their measurements, and the search.

From the bottom: `recipe` says what is done, `data` has the images, `apply` makes a recipe's model, `measure` its
figures, `search` chooses, and `write` makes the bundle with its report.
"""
