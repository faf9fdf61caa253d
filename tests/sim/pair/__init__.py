"""Two brokers over one bucket among faults, late work first of all; the run is their controller.

Smaller and faster than `tests.sim.several`: no elections of a controller, no clients' connections, one partition, a
topic that is deleted and made again by the same name all the time. `python -m tests.sim.pair --seeds 1..20000`.
"""
