"""`thermocline archive` and `scrub`: commands that are Spark jobs."""
