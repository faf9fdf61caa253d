"""The campaign: three brokers under stock clients, a nemesis that kills, stops, cuts off, and books that must balance.

`python -m tests.campaign --minutes 5 --seed 7 --bucket versitygw`. `books` says what was acknowledged where and what no
log may show, `clients` writes and reads, `nemesis` does the harm, `aftermath` compares what is left, `run` is the
course of it all.
"""
