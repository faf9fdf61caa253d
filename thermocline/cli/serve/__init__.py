"""`thermocline serve`: the process of a broker, or of a supervisor of several."""
