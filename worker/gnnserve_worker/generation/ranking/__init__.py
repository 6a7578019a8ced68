"""Ranking of feature columns, most important first: a file per method.

The methods are those of Dynamic GNN inference as-a-service, section 3.2.
"""
