"""Queue locks of ordered consumption and the leases on them."""
