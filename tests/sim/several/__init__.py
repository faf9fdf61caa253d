"""Several brokers over one bucket, simulated: each on a machine of its own, links between them, and clients that follow
what brokers say of who leads.

It extends the world of one broker (`tests.sim`) and shares its disk, net, bucket, clients, history and checker; what it
adds are roles (the controller, the leader of a partition), faults of some of many, and a god view: what must hold
between brokers at every moment. `python -m tests.sim --brokers 3 --seed 7` replays one.
"""
