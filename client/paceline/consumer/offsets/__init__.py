"""Where a group stands in its queues: on the brokers, in a local file, or under a lock."""
