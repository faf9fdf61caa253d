"""From a configuration to a broker that serves: the parts of a start, and of a stop."""
