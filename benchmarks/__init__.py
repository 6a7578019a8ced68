"""Figures that the documentation quotes, each reproducible by one `make bench-…`; results lie in `results/`."""
