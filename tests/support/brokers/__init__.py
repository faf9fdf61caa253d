"""Whole brokers in virtual time, one or several, and what surrounds them."""
