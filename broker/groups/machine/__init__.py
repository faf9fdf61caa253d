"""The classic group protocol as pure machines."""
