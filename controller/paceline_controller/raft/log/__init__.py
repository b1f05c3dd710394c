"""The Raft log on disk: journal and snapshots."""
