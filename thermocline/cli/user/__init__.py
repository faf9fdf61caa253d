"""`thermocline user`: who may log in by SCRAM."""
