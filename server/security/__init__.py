"""Decides who may ask, how often, over which wire, and what a connection may cost: all before a request is read."""
