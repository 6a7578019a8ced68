"""Accuracy of variants, rankings, cascades and links."""
