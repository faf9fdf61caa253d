"""The soak: one broker under mixed load for as long as wanted, killed over and over, and its books kept.

`make soak MINUTES=30`. `ledger` says which acknowledged record must be seen where,
`load` holds the clients, `samples` what the process costs and whether it grows, `run` starts, kills and judges.
"""
