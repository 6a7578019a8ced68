"""The load generator: schedule (when), requests (what), transport (how), statistics (what came of it).

No numpy: `gnnserve load` starts at once, and its own cost stays out of what it measures.
"""
