"""One log on disk: segments, indexes, producers, retention."""
