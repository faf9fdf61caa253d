"""What an operator sees: /metrics, health, status."""
