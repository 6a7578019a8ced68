"""Everything that computes: graphs, sampling, models, generation, the repository, serving."""
