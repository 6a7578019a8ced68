"""All models of the table, in its order."""

from __future__ import annotations

from benchmarks.model_table import frameworks, ogb, public, pyg_one_type, pyg_others, pyg_several_types, pyg_tables

ENTRIES = (
    *pyg_one_type.ENTRIES,
    *pyg_several_types.ENTRIES,
    *pyg_tables.ENTRIES,
    *ogb.ENTRIES,
    *frameworks.ENTRIES,
    *public.ENTRIES,
)
LISTED = pyg_others.LISTED
"""Files of these families that are not run, with their reasons."""
