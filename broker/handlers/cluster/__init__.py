"""Requests of brokers and operators to the controller."""
