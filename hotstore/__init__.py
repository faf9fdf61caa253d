"""One broker's logs on local disk: Kafka's files and Kafka's rules.

`log` is one log, `flush` makes appends durable, `recovery` opens a log after a stop or a crash, `host` owns all logs
of a data directory, `cleaning` compacts closed segments. The event loop owns every log; blocking work runs in workers.
"""
