"""What each request of RocketMQ's gRPC protocol does; without sockets."""
