"""Models as programs."""
