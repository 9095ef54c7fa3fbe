"""What the OpenAI protocol says: bodies, streams of events, errors, its description."""
