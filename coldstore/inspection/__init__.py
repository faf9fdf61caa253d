"""Looks at a whole bucket: audit, probe, what may go."""
