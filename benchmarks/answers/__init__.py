"""Single answers over HTTP and gRPC: latency, protocols, listeners, malformed requests."""
