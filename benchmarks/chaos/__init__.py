"""A cluster in which everything is killed and paused at random."""
