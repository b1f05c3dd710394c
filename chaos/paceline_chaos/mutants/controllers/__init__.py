"""Rules of elections, epochs and the Raft quorum, taken out."""
