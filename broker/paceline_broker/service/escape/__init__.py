"""What other groups take from an acting master (R36)."""
