"""Messages between clients and workers."""
