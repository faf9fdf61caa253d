"""What all commands share with the person who types them: flags, times, tables, questions, and how a command ends.

Must not know brokers, buckets, nor what a command does.
"""
