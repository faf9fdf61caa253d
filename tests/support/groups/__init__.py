"""Consumer groups on a log in memory, in virtual time."""
