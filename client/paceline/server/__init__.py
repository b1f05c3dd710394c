"""What servers share: HTTP listeners, limits on bytes, connections and turns of the loop."""
