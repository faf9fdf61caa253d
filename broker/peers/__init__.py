"""Requests from this broker to others of its cluster: connections, where they lead,
and the controller from anywhere."""
