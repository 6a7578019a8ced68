"""Recommendations, and indexes of embeddings."""
