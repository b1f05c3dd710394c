"""Sessions of brokers with a controller."""
