"""Inspection of a complete bucket: audit, probe, and detection of garbage."""
