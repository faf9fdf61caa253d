"""The Kafka protocol as bytes: message table, generated codec, framing.

No I/O; memory is allocated for received bytes, never for claimed lengths.
"""
