"""Scripts about masters, replicas, disks and clocks."""
