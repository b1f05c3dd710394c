"""Faults of simulated clusters: drawn, begun, ended, cut down to those that matter."""
