"""What RocketMQ's protobuf messages say, in terms of paceline, and back; pure."""
