"""`paceline send`."""
