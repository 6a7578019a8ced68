"""A worker's process from its start to an orderly end: the server, its services and their second revisions."""
