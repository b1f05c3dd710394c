"""What a client of a workload does: one module for each kind of work."""
