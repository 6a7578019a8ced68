"""gnnserve beside other ways to serve the same network: `python -m benchmarks.peers`, or `make bench-peers`."""
