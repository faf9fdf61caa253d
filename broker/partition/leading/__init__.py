"""A replica that leads."""
