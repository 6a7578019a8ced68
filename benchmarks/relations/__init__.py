"""Graphs of several types."""
