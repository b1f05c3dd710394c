"""Users and rights in worlds: who changes them, and who has them or not."""
