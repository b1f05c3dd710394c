"""`paceline up` and `demo`: a cluster on this machine."""
