"""Compaction of local logs (Kafka's log cleaner).

`cleanable.py` decides which part of a log is dirty, and when a pass is due. `clean_pass.py` cleans one log through its
lease. `log_cleaner.py` chooses logs. `engine.py` is the interface for the work on bytes, which a child process does
(`engine_process.py`).
"""
