"""Data plane: OpenAI-compatible HTTP in, two-leg vLLM calls out."""
