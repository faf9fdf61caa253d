"""A partition's tier at the begin of a role."""
