"""Ends of connections without sockets: scripted peers and brokers."""
