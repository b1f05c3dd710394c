"""The replica's side of replication."""
