"""Scripted lives of one broker: the same acts, broken at every step in every way."""
