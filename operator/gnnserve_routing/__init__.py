"""Routing's slow loop as pure functions: from measurements of the workers to their routing table.

The operator uses it with samples of Prometheus, `gnnserve run` also with its own counters. Nothing here waits, asks or
writes; time and samples are arguments.
"""
