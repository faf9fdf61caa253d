"""This broker's place in the cluster: its session, and its claim to be the controller.

`identity.py` decides whether a data directory may serve this bucket. `session_start.py` registers with the controller.
If there is no controller, it claims the controller epoch. `session.py` keeps the session: it polls `cluster.json`, and
registers again when the image shows that the session ended. `heartbeat.py` reports health to the controller and
receives new metadata. The controller holds `lease.json` (`controller_lease.py`). `lease_watch.py` (pure) decides when
another broker may claim (`controller_term.py`). `serving_gate.py` stops every answer once the session cannot be
trusted. `controlled_shutdown.py` hands leaderships over, closes logs and ends the session.
"""
