"""The Kafka protocol as bytes: message table, generated codec, framing.

No I/O. Memory is allocated only for received bytes, never for claimed lengths.
"""
