"""kopf's side: what is watched, kept and passed on. One table, no file per kind, since all are handled alike."""
