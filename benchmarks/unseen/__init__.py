"""Nodes that the graph has not seen."""
