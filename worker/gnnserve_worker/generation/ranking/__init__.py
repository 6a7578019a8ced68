"""Ranking of feature columns, most important first (paper A, section 3.2). One file per method."""
