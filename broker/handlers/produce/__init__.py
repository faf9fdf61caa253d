"""Produce: the general way, and the fast one for frames like the connection's last."""
