"""Kubernetes in, Kubernetes out: events, observation, plans carried out."""
