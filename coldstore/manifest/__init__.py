"""The manifest of a partition: its root and pages."""
