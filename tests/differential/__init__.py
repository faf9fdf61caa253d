"""The short way of Produce against the long one: random histories, two brokers, no difference allowed.

`python -m tests.differential --histories 1000000 --processes 2` runs them; a difference prints the seed that repeats
it. A history is a list of steps (`history`), made of requests (`requests`) whose batches come from `batches`. Two
brokers in one virtual time live it (`brokers`): one is given a connection's bytes cut anywhere, the other is given each
request alone and has no fast path. `facts` says what must be equal, `reference` recomputes from Kafka's rules what
both must have written, without the code under test.
"""
