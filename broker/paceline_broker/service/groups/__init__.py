"""Consumer groups: members, offsets, pins, and who is connected."""
