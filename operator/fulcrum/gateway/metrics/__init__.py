"""What is counted, as Prometheus text."""
