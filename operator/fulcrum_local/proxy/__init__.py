"""Services of local mode: cluster IPs on the loopback network, forwarded to ready Pods (kube-proxy's part)."""
