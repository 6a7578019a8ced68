"""Routing's slow loop as pure functions: from what was measured of the workers to what they are told.

Used by the operator, which measures by Prometheus, and by `gnnserve run`, which may also read its own counters. Nothing
here waits, asks or writes; time and samples are arguments.
"""
