"""Seeded runs that `make test` plays."""
