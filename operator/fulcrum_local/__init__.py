"""The Kubernetes of `fulcrum up`, on one machine: API server, controllers, a kubelet that runs Pods as processes."""
