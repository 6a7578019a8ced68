"""First layers over feature columns of several types, each of which has columns of its own: in rank order, of which a
network reads the first ones (`type_means.py`)."""
