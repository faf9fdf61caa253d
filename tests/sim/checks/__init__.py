"""The checker of a history, what must hold at every moment, and the table of counted faults."""
