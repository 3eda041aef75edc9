"""Preprocessing: geometry, resize, orientation and normalisation of decoded images."""
