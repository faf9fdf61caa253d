"""One broker: Kafka's requests and errors exist here and nowhere below.

`app` runs it, `start` wires it from a `World` of seams, `dispatcher` routes requests, `context` is what handlers get.
Packages from the bottom: `wire`, `net`, `config` · `metadata` · `following` · `peers` · `partition`, `controller` ·
`membership` · `internal_topics` · `groups` · `handlers`, `observe` · `startup`, `read_only`.
"""
