"""`paceline cluster` and `paceline controller`."""
