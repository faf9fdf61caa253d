"""Bulk work on cold data as PySpark jobs: archive, scrub."""
