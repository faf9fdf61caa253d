"""Apache Kafka itself: a peer beside our brokers, its tools, and what its producers wrote."""
