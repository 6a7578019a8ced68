"""What a profile says, for a person: worked out by `build.py`, shown by `terminal.py` and `html.py`, or as JSON."""
