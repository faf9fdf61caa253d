"""Brokers, elections and reassignments: what brokers and operators ask of the controller."""
