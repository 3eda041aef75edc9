"""Alerts on trial: a real Prometheus and Alertmanager beside a server that something is done to."""
