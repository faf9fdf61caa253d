"""What must hold between several brokers: acknowledged records, copies of a log, and what may be lost."""
