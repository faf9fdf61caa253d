"""Configs of listeners: addresses, key stores, logins, limits of connections."""
