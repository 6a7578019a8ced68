"""The operator: from a `GNNService` to everything that serves it, and back to its status."""
