"""TCP side of the broker: frames in, responses out, and their limits. `dispatch` has the interfaces."""
