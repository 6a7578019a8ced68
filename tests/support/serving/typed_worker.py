"""A worker whose nodes are of several types."""

from __future__ import annotations

import dataclasses

import numpy as np
from tests.support.serving.serving import FakeWorker

from gnnserve_api.files.graph_schema import GraphSchema, RelationManifest, TypeManifest
from gnnserve_worker.asking.asked_nodes import AskedNodes
from gnnserve_worker.asking.described_types import TypesByName
from gnnserve_worker.asking.naming import TargetNaming, naming_of
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.asking.type_ids import TargetIds
from gnnserve_worker.graph.ids import NodeIds, integer_ids

PAPERS, AUTHORS = ("p/1", "author/2", "plain"), (70, -3)


class TypedWorker(FakeWorker):
    """A worker over papers and authors, which classifies papers."""

    def graph(self, asked: AskedNodes) -> ServedGraph:
        kind = "Positions" if self.ids is None else "Strings"
        types = GraphSchema(
            (
                TypeManifest("paper", self.nodes, 4, kind),  # type: ignore[arg-type]
                TypeManifest("author", len(AUTHORS), None, "Integers"),
            ),
            (RelationManifest("author", "writes", "paper", 5, None, merges=False, both_ways=False),),
        )
        type_ids: dict[str, NodeIds | None] = {"paper": self.ids, "author": integer_ids(np.array(AUTHORS))}  # type: ignore[dict-item]
        ids, plain = TargetIds(types, types, type_ids), super().graph(asked)
        return dataclasses.replace(
            plain,
            naming=TargetNaming(naming_of(self.ids, self.nodes, "paper"), ids),
            types=types,
            ids=ids,
            described=TypesByName(types.types),
        )
