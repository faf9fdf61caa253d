"""Decisions of the controller: pure functions of an image."""
