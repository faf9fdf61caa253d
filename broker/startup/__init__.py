"""Start and stop of a broker, part by part."""
