"""One partition's log on local disk: Kafka's files, Kafka's rules, one owner (the loop), blocking work in workers.

Doors: `data_dir.DataDir`, `log_host.LogHost`, `partition_log.PartitionLog`, `flusher.Flusher`,
`local_retention.expirable`. Must not know
buckets, the network, replication.
"""
