"""Kafka's configs: their names and defaults, those that have an effect here, and those that have none.

`kafka_names.py` is generated from Kafka's own definitions. `honoured.py` has the effect of each config here;
`without_effect.py` has the reason why a config has none.
"""
