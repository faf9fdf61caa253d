"""Requests to other brokers of the cluster, and forwarding to the controller."""
