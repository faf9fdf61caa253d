"""Start of a role: what a new leader does with log and bucket."""
