"""Connections to a broker: the stock client, our own for other requests, the HTTP port; and bootstrap addresses."""
