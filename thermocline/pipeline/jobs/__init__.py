"""Bulk work on cold data as PySpark jobs: archive, compaction, scrub.

`archive.py` drives an archive: `archive_plan.py` decides the next step, `archive_worker.py` writes its files, `tables`
commits them. `spark_tasks.py` runs the tasks of all jobs, on Spark or in this process.
"""
