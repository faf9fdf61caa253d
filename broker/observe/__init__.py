"""What an operator sees: counters, /metrics, health, status."""
