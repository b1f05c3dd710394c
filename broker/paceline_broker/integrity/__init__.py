"""Damage of the log: found, kept from readers, repaired from members, or discarded by order."""
