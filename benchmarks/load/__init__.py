"""Load: routing, decisions, services that share a worker, a soak."""
