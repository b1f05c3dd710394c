"""Clients of RocketMQ in worlds: gateways that die, and who speaks the protocols to them."""
