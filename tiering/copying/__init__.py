"""Copies of sealed segments to the bucket."""
