"""This broker's place in the cluster: its session, and its claim to be the controller.

`identity.py` says whether a data directory may serve this bucket. `session_start.py` registers with the controller,
or claims where there is none. `session.py` keeps the session: it polls `cluster.json` and registers again after the
image shows that the session ended. `heartbeat.py` reports health to the controller and receives new metadata. The
controller holds `lease.json` (`controller_lease.py`); `lease_watch.py` (pure) says when another broker may claim
(`controller_term.py`). `serving_gate.py` stops every answer once the session cannot be trusted.
`controlled_shutdown.py` hands leaderships over, closes logs, ends the session.
"""
