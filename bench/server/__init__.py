"""`milkweed bench server`: a server under load, section by section, one row each."""
