"""What is asked for: rate, lengths, burstiness, and how sure that is. Pure."""
