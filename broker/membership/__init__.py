"""Who belongs to the cluster, and who decides for it: registration and election."""
