"""Agreements of the operator with the programs in its pods: variables and paths, routing, pools, the log of changes."""
