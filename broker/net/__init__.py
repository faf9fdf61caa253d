"""Network: cuts frames from TCP connections and sends the responses, with bounds on both directions.

`connection.py` cuts bytes into frames without copies (`buffers.py`, `frames.py`). Requests that arrived together are
dispatched together. A connection has one of nine states (`connection_state.py`, pure). Responses leave in the order of
their requests. `tls` encrypts a connection.
"""
