"""Pure: messages of the remoting protocol: frames, headers, stored messages, heartbeats."""
