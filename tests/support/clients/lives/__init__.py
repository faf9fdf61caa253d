"""A life of a stock client, as a program of its own: the same for each client.

    PROGRAM ACCESS TOPIC COPY GROUP TRANSACTIONAL_ID RECORDS

ACCESS is the JSON file of `Access`. An idempotent producer writes the numbers below RECORDS to TOPIC, one after the
other, and prints `acked N` for each. Then a consumer of GROUP reads TOPIC, writes what it read to COPY in transactions
that hold its offsets too, and prints `copied COUNT` after each commit, with the number of records committed so far.
The exit code is 0 when everything is written and copied.
"""
