"""Kafka's configs: their names and defaults, the configs with an effect here, and the configs without effect.

`kafka_names.py` is generated from Kafka's own definitions. `honoured.py` has the effect of each config here;
`without_effect.py` has the reason why a config has no effect.
"""
