"""Sockets, connections and their limits: what happens before a request is read."""
