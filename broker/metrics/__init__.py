"""Counters and clocks that every room may bump. Who shows them: `broker.observe`."""
