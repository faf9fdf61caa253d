"""Helpers of several tests; a room for each part of the world that they stand in for."""
