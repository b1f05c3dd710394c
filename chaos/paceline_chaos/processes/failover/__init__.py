"""`paceline chaos failover`: how long a killed master is missed, and what clients saw."""
