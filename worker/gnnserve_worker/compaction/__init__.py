"""Compaction: the log of changes becomes part of a new version of the graph, over which revisions are published."""
