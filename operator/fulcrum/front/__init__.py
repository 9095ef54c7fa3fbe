"""Which cluster serves a request of an InferenceGateway: shares of a canary, conversations that stay, fallback.

Part of the decision core: no I/O, no clock.
"""
