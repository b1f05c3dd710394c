"""The leader's work: probes, elections, transfers, commands that take effect once."""
