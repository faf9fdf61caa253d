"""Partitions on this broker: one owner for each replica, and its roles.

`replica_manager.py` receives the publisher's orders (lead, follow, resign, reconfigure, delete) and never waits.
`replica_owner.py` carries out the orders for one replica:

    REST ─► OPENING ─► LEADING or FOLLOWING ─► ENDING ─► REST, or REMOVING ─► gone

ENDING lasts until the role's lease on the log is returned. Roles are in `leading` and `following`; `removing` deletes
logs and moves strays aside. `registry.py` has the tables in which requests find a replica. A manifest with a higher
leader epoch ends the leadership of its partition only.
"""
