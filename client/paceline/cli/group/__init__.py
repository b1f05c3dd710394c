"""`paceline group`, `dlq` and `clients`."""
