"""Properties of masters, replicas, their logs, and the controllers."""
