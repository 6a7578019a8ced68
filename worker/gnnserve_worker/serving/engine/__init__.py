"""The engine and what it works on: models with their lanes, whose turn it is, and where batches run."""
