"""The commands that make and inspect bundles."""
