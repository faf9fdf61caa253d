"""The soak: one broker, or several, under mixed load for as long as wanted, killed over and over, and the books kept.

`make soak MINUTES=30 [BROKERS=3]`. `ledger` says which acknowledged record must be seen where,
`load` holds the clients, `samples` what the process costs and whether it grows, `run` starts, kills and judges.
"""
