"""Requests of this broker to others of its cluster: connections, forwarding, and the way to the controller."""
