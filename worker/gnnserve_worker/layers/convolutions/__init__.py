"""Convolutions: one file for each family, and `registry.py`, which finds the object of a kind."""
