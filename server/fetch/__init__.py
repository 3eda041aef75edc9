"""Fetches images by URL, from hosts that the settings name and from public addresses alone."""
