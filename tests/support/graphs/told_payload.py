"""Messages about columns of edges."""

from __future__ import annotations

from gnnserve_worker.graph.store import GraphData


def told(data: GraphData, place: int = 0) -> list[tuple[int, int, list[float], int]]:
    """Reader, what it reads, features and time of each entry."""
    relation = data.relations[place]
    assert relation.payload is not None
    lists, rows = relation.lists, relation.lists.payload_rows
    features, times = relation.payload.features[rows].tolist(), relation.payload.times[rows].tolist()
    return list(zip(lists.targets().tolist(), lists.indices.tolist(), features, times, strict=True))


def told_names(data: GraphData) -> list[str]:
    return [finding.example for finding in data.findings if finding.what.startswith("columns of edges not read")]
