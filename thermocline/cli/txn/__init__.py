"""`thermocline txn`: transactions at their coordinators, and hanging ones in partitions (KIP-664)."""
