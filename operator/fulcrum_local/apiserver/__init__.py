"""The embedded Kubernetes API server: enough of the real one that kubectl, kopf and client-go cannot tell.

Layers, each importing only those above it: values (`errors`, `kinds`, `selectors`), state (`store`), access
(`authentication`, `authorization`), operations (`reading`, `writing`, `watching`, ...), and `server`.
"""
