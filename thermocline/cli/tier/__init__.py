"""`thermocline tier`: how much of each log is in the bucket, what blocks copying, and when data is deleted."""
