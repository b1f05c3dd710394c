"""Rules of logs, disks, checkpoints, replication and retention, taken out."""
