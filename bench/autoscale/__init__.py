"""A simulation of many replicas, their load balancer and their autoscaler, from a measured cost of batches."""
