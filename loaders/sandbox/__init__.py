"""Decodes images in child processes if their headers are not validated here: a hostile one costs a child at most."""
