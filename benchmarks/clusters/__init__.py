"""The operator on clusters, real and simulated."""
