"""kopf's handlers: what is watched, indexed and passed on. All kinds are handled alike, by one table."""
