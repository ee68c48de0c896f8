"""What the benchmark of the gateway starts beside it."""
