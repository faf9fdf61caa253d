"""Creation of a log, and recovery after a stop or a crash."""
