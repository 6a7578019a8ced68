"""Models as public repositories have them, each described as a program and run as a server runs it.

`entries.py` says what is known of a model; a file for each family writes their structures; `checking.py` runs one;
`table.py` is the part of the benchmark, and its table for docs/models.md.
"""
