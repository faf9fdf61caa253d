"""The event loop and its threads: tasks with an owner, turns, beats, and workers for blocking calls."""
