"""Administration: topics, groups, offsets, dead letters, pins, and who is connected."""
