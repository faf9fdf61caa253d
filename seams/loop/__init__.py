"""Work on the event loop and beside it: tasks with an owner, turns, beats, and threads for blocking calls."""
