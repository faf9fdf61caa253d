"""`thermocline acl`: who may do what, at a running broker."""
