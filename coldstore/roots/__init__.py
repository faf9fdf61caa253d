"""Roots: small objects that are replaced by compare-and-set."""
