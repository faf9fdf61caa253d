"""TCP side of the broker: frames in, answers out, limits on both. See `dispatch` for the doors."""
