"""What breaks some of several brokers, seeded: processes, disks, the store, settings, drains."""
