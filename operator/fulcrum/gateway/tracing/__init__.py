"""Traces of requests; the OpenTelemetry SDK is imported only where they are wanted."""
