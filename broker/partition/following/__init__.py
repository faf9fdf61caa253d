"""The follower role: copying from the leader, truncation, local retention, reads of consumers (KIP-392).

`fetcher_manager.py` keeps two fetchers for each leading broker: one for replicas in sync, one for replicas that are
behind.
"""
