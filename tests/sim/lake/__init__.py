"""Readers of the bucket without a broker (`thermocline.read`, Spark, the archive) in simulated runs.

They plan, wait while brokers copy, compact, expire and delete, and read then. `python -m tests.sim.lake --seeds 1..100`
plays them, with `--brokers 3` beside several brokers.
"""
