"""One partition's log on local disk, in Kafka's files: the loop owns it, workers do the blocking calls.
Entry points: `data_dir.DataDir`, `log_host.LogHost`, `partition_log.PartitionLog`, `local_retention.expirable`."""
