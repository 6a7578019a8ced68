"""How long tests wait for what must come. Never reached where all is well: only a test that fails takes so long."""

from __future__ import annotations

WAIT_S = 120.0
"""Seconds. Long enough for a machine on which both tiers of the tests run at once."""
