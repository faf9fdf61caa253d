"""Produce: the general path, and a fast path for requests that repeat the connection's last one."""
