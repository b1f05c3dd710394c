"""`paceline group`, `paceline dlq` and `paceline client`."""
