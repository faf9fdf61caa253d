"""`thermocline cluster`: status, findings and forget, with packages for moves and for restore.

Requests go to any broker. Apache Kafka's brokers work, too, for requests that Kafka's protocol has.
"""
