"""Compaction of local logs (Kafka's log cleaner).

`cleanable.py` decides which part of a log is dirty and when it is cleaned. `clean_pass.py` cleans one log through its
lease. `log_cleaner.py` chooses logs. `engine.py` is the interface to the work on bytes, which a child process does
(`engine_process.py`).
"""
