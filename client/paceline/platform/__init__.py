"""The machine behind the ports: clock, chance, disk, tasks; settings, secrets, logs, metrics."""
