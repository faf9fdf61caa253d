"""`thermocline group`: lag of consumer groups, and resets of their positions."""
