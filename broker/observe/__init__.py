"""Metrics, status, conditions and the HTTP port."""
