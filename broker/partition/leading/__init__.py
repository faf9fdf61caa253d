"""The leader role: opening a log to lead, acknowledgements, in-sync proposals.

`leader_role.py` opens the log and attaches its tier, `publication.py` makes the partition visible to requests,
`leader_replica.py` serves it. `delayed_operations.py` holds the requests that wait (Kafka's purgatory).
"""
