"""Buckets of history, logs to decode, Spark sessions and Iceberg catalogs, for tests of the pipeline."""
