"""Received messages (POP): acknowledgements and longer leases."""
