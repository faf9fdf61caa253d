"""Requests made from the wire table: random ones, hostile ones, and what each costs."""
