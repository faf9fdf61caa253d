"""`thermocline txn`: transactions at their coordinators, and hanging transactions in partitions (KIP-664)."""
