"""Partitions this broker leads, and the two things that wait on them: acks and fetches."""
