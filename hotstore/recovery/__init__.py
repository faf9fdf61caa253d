"""A log made, or read from disk again after a stop or a crash."""
