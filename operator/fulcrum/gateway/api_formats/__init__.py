"""What the APIs say, OpenAI's and Anthropic's: bodies, streams of events, errors, its description."""
