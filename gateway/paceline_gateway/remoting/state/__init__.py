"""What the remoting door keeps of connections, users, groups, locks and queues; no handlers."""
