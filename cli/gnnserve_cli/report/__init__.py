"""Report of a profile, for a person: worked out by `build.py`, shown by `terminal.py` and `html.py`, or as JSON."""
