"""`paceline topic`."""
