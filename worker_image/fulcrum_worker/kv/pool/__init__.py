"""The pool: KV blocks as files on a volume that the workers of a cluster share. Free of vLLM, but for `tier`."""
