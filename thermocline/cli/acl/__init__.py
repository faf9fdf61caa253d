"""`thermocline acl`: the ACLs of a running cluster."""
