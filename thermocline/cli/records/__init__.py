"""`thermocline produce` and `consume`: records from stdin, records to stdout."""
