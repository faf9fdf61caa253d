"""Configs as Kafka's APIs and `config explain` show and alter them."""
