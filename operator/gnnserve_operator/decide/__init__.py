"""Decisions, one question a file; each a pure function with a small frozen answer that says why.

The order in which they are asked is `plan`'s.
"""
