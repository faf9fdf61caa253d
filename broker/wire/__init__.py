"""The Kafka protocol as bytes: message table, generated codec, framing, error codes.

Always true: nothing here does I/O, keeps state between calls or allocates what a frame merely claims. Must not know
what a request means.
"""
