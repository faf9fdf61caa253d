"""The Spark source: options, input partitions, readers for batch and stream."""
