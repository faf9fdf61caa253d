"""One file an API family: parse → call → answer. No state lives here."""
