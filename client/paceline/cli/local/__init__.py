"""`paceline up` and `paceline demo`: a cluster on this machine."""
