"""Imports of data, and starts of workers."""
