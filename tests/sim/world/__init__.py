"""The world of a simulated process: its loop, clocks, workers, network, machines and bucket."""
