"""`thermocline bucket` and `log`: what lies in a bucket or in a log file, read with no broker."""
