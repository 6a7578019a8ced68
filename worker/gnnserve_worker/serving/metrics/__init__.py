"""Metrics of a worker: counted by the event loop, or read when they are scraped."""
