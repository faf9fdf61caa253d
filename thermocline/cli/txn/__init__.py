"""`thermocline txn`: transactions at their coordinators, and those that hang in a partition (KIP-664)."""
