"""One package for each family of APIs: parse, call, answer. Handlers keep no state.

`broker/dispatcher.py` names the handler of each API. Before the call, the dispatcher parses the header, asks the
authorizer and checks the serving gate. A request that only the controller can decide is forwarded to the controller in
an Envelope (`cluster/envelope.py`).
"""
