"""Protocols of other servers, for clients that are there already; each is off unless it is named."""
