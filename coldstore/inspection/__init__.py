"""Inspection of a whole bucket: audit, probe, garbage."""
