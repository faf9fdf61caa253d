"""The parts of a broker's start and stop."""
