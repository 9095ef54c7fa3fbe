"""Bytes to and from clients and engines: HTTP/1.1, connections, back-pressure."""
