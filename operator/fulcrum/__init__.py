"""Fulcrum: a Kubernetes operator and control plane for disaggregated LLM inference."""

__version__ = "0.1.0"
