"""When appended bytes are durable."""
