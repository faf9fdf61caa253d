"""`thermocline group`: how far consumer groups are, and where they go on."""
