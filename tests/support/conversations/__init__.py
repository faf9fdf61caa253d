"""Conversations that any broker can be asked, and programs that record Kafka's answers as golden files."""
