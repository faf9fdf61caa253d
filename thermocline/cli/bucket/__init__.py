"""`thermocline bucket` and `log`: inspect a bucket or a log file without a broker."""
