"""Types of the files that generation writes and workers read: graphs, revisions, profiles, embeddings, exports."""
