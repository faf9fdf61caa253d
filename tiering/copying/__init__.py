"""Sealed segments go to the bucket."""
