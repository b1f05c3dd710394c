"""The gateway: doors for clients of RocketMQ, unchanged, by gRPC and by the remoting protocol."""
