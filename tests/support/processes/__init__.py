"""Real brokers in processes of their own: their site, ports, terminal, and the network between them."""
