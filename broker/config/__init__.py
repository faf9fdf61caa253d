"""Configs: names, meanings, limits, and the values of a running broker and its topics. Pure.

`kafka` has Kafka's configs, `own.py` has Thermocline's broker configs, `definitions.py` joins both. `resolve.py` makes
the `BrokerConfig` that a broker starts with, `live.py` changes it at run time. `topic` has the configs of topics, `api`
shows and alters configs, `network` has the configs of listeners.
"""
