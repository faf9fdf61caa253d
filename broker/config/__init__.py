"""Configs: names, meanings, limits, and the values a broker and a topic run with. Pure."""
