"""Clients with transactions in a simulated run: lines of producers, each of a transactional id, and who reads them.

`session` is one producer's life, `line` what becomes of one after another, `looking` are readers, `cast` brings them
into a run's acts. What they see is judged by `tests.sim.checks.transactions`.
"""
