"""How messages come from brokers to a consumer."""
