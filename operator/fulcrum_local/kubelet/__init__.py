"""A kubelet that runs each Pod's containers as processes of this machine, against any Kubernetes API server."""
