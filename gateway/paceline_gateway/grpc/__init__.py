"""RocketMQ's gRPC protocol, version 2."""
