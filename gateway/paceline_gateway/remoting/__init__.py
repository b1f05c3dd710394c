"""RocketMQ's remoting protocol: frames, headers, codes."""
