"""What can be done to a server, and which alerts must tell of it."""
