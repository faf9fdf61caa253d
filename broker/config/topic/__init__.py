"""Configs of topics."""
