"""Counters that every package may increment; `broker.observe` shows them."""
