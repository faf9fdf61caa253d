"""Requests of this broker to other brokers of its cluster: connections, logins, and forwarding to the controller."""
