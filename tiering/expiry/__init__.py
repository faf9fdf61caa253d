"""Expiry: deletes local segments and objects when retention allows it.

`expirer.py` deletes local segments; segments of a tiered topic are deleted only after their object in the bucket was
verified. `cold_expirer.py` deletes objects after the log start moved. `collector.py` deletes orphans and the objects of
deleted topics. `disk_watch.py` keeps the disk below its limit: the chunk cache yields first, then copied segments.
"""
