"""One broker's logs on local disk, with Kafka's files and rules.

`log` has one log, `flush` makes appends durable, `recovery` opens a log after a stop or a crash, `host` owns all logs
of a data directory, `cleaning` compacts closed segments. The event loop owns every log. Blocking work runs in workers.
"""
