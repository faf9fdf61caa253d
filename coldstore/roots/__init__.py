"""Roots: small objects replaced by compare-and-set."""
