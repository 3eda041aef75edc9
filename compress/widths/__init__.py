"""Narrower layers: fewer hidden units, narrower queries and keys, fitted in closed form."""
