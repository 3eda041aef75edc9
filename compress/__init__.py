"""From a dense model and photographs to a smaller one: recipes, their candidates, measurements, and the search.

From the bottom: `recipe` says what is done, `data` has the images, `apply` makes a recipe's model, `measure` its
figures, `search` chooses, and `write` makes the bundle with its report.
"""
