"""Pages of figures, written from the results."""
