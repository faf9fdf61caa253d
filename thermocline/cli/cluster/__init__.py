"""`thermocline cluster`: status and findings, forget; packages for moves and for restore.

Any broker may be asked, and Apache Kafka's too where its protocol has the request.
"""
