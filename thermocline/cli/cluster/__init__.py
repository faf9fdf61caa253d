"""`thermocline cluster`: status and findings, forget; packages for moves and for restore.

Requests go to any broker, also to Apache Kafka's where its protocol has the request.
"""
