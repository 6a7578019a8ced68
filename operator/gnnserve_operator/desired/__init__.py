"""Desired objects of a GNNService: one builder per kind of child, each returning a complete manifest.

Builders write only what the API server stores word for word (no empty lists, no zeros that it leaves out), so that
comparing a manifest with the live object finds only real changes. Quantities are the exception: they stay as the user
wrote them, and are compared by value. `apply` does the writing.
"""
