"""Request handlers: one file an API family. Each parses a request, calls the broker, and builds the response; none
keeps state."""
