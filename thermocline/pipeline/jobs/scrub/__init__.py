"""The scrub of a bucket: what to read, the tasks that read and check it, and the journal of what was read."""
