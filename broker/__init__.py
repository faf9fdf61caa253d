"""The broker. The packages below it do not know Kafka's requests and errors.

`app` runs it, `start` wires it from a `World` of seams, `dispatcher` routes requests, `context` has the parts that
every handler gets. Packages from the bottom: `wire`, `net`, `config` · `metadata` · `following` · `peers` ·
`partition`, `controller` · `membership` · `internal_topics` · `groups` · `handlers`, `observe` · `startup`,
`read_only`.
"""
