"""`thermocline user`: the SCRAM users of a cluster."""
