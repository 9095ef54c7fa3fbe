"""The host tier inside vLLM: KV that left the accelerator, and how it comes back. Imported by the engine only."""
