"""Several brokers on one machine, a process and a broker group for each core."""
