"""Kafka's configs: their names and defaults, those that have an effect here, and those without.

`kafka_names.py` is made by a program from Kafka's own definitions. `honoured.py` and `without_effect.py` say of each
config what it does here, or why it does nothing.
"""
