"""Traces of requests for OpenTelemetry: opt-in, nothing of it imported where it is off."""
