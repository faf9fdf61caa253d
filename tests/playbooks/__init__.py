"""Playbooks of the cluster's core: the controller's rows, leaders and followers of one partition, without a broker.

Owns `core` (what may happen, one event at a time, on the real machines), `oracle` (what must hold after each), `walks`
(any events at random) and `conversations` (every order of a few). `python -m tests.playbooks` runs many walks.
"""
