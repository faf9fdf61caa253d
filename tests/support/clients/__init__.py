"""Stock Kafka clients, and programs that write and commit with them all the while."""
