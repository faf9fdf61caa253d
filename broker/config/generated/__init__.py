"""Tables made by programs."""
