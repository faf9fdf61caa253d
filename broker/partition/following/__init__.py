"""A replica that copies its leader."""
