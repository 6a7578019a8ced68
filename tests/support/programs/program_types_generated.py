"""Programs over several types, generated over graphs that grow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.graphs.graphs import service_of
from tests.support.graphs.several_types import TypedParts, write_hetero, write_tables
from tests.support.programs.program_types import (
    CLASSES,
    COLUMNS,
    COUNTS,
    FEATURES,
    HIDDEN,
    PROGRAM,
    RELATIONS,
    USERS,
    Model,
    whole_graph,
)

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.repository.repository import Repository


def graph_parts(*, as_columns: bool) -> TypedParts:
    """The graph of `test_program_types`, as a source has it. `as_columns`: what edges have is a column each."""
    parts, arrays = TypedParts(), whole_graph()
    parts.nodes = {name: {"num_nodes": np.array(COUNTS[name]), "features": FEATURES[name]} for name in COUNTS}
    part = np.arange(USERS) * 3 // USERS
    masks = {name: part == place for place, name in enumerate(("train_mask", "val_mask", "test_mask"))}
    parts.nodes["user"] |= {"labels": np.arange(USERS) % CLASSES, **masks}
    for one in RELATIONS:
        src, dst = arrays[one.name]
        parts.edges[one.source, one.name, one.target] = {"src": src, "dst": dst}
    price, stars = arrays["attr"].T
    named = {"price": price, "stars": stars, "at": arrays["time"]}
    whole = {"edge_attr": arrays["attr"], "edge_time": arrays["time"]}
    parts.edges["item", "bought_by", "user"] |= named if as_columns else whole
    return parts


def hetero_data(folder: Path) -> dict[str, Any]:
    made = write_hetero(folder, graph_parts(as_columns=False))
    made["heteroData"]["edgeColumns"] = "Read"
    return made


def tables(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = write_tables(folder, graph_parts(as_columns=True), ids={"user": "u", "item": "i"})
    (bought,) = (one for one in made["csv"]["edges"] if one["relation"] == "bought_by")
    bought |= {"features": ["price", "stars"], "time": "at"}
    for one in made["csv"]["edges"]:
        one["duplicates"] = "Keep"
    return made


def contract(**more: Any) -> dict[str, Any]:
    inputs = []
    for each in PROGRAM.inputs:
        relation = {name: getattr(each.relation, name) for name in ("source", "name", "target")}
        of = {"relation": relation} if each.relation.name else {"type": each.type}
        inputs.append({"name": each.name, "is": str(each.role), **of})
    scores, embeddings = {"name": "scores", "columns": CLASSES}, {"name": "hidden", "columns": HIDDEN}
    return {"hops": 2, "inputs": inputs, "scores": scores, "embeddings": embeddings, **more}


class Given:
    """A manifest of the program over a source, and where it is generated."""

    def __init__(self, folder: Path, program: Path, scores: np.ndarray, source: Callable[[Path], Any]) -> None:
        self.folder, self.program, self.source = folder, program, source(folder)
        self.repository = Repository(folder / "repository", "default", "tiny")
        self.ids: Any = [f"u{node}" for node in range(USERS)] if source is tables else np.arange(USERS)
        self.expect(scores)

    def expect(self, scores: np.ndarray) -> None:
        np.savez(self.folder / "expected.npz", nodes=self.ids, scores=scores)

    def service(self, given: dict[str, Any], **parts: Any) -> Any:
        typed = {**self.source, "target": "user", "reverse": "Disabled"}
        model = {
            "program": {"uri": self.program.as_uri(), **given},
            "expected": {"uri": (self.folder / "expected.npz").as_uri()},
            **parts.pop("model", {}),
        }
        spec = service_of("file:///none.npz", model=model, **parts).model_dump(by_alias=True, exclude_none=True)
        spec["spec"]["graph"]["source"] = {"typed": typed}
        return type(service_of("file:///none.npz")).model_validate(spec)

    def generate(self, given: dict[str, Any], **parts: Any) -> RevisionManifest:
        return generate(self.service(given, **parts), self.repository)

    def refusal(self, given: dict[str, Any], **parts: Any) -> str:
        with pytest.raises(InputError) as caught:
            self.generate(given, **parts)
        assert not self.repository.revisions()
        return str(caught.value)


class GrownGraph:
    """The graph with what requests and changes bring to it, by the ids of its nodes."""

    def __init__(self) -> None:
        self.rows = {name: dict(enumerate(FEATURES[name])) for name in COUNTS}
        self.edges: dict[str, list[tuple[int, int, list[float] | None, int | None]]] = {}
        arrays = whole_graph()
        for one in RELATIONS:
            ends = arrays[one.name].T.tolist()
            having = zip(arrays["attr"].tolist(), arrays["time"].tolist(), strict=True)
            own = having if one.payload is not None else ((None, None) for _ in ends)
            self.edges[one.name] = [(*pair, *each) for pair, each in zip(ends, own, strict=True)]
        self._fresh = 1000

    @property
    def users(self) -> list[int]:
        return [*self.rows["user"]]

    def drawn(self, draw: np.random.Generator) -> dict[str, Any]:
        """New nodes of either type, edges by each relation with what these have, and other features of stored nodes,
        which are in the graph from then on."""
        nodes = []
        for _ in range(draw.integers(0, 5)):
            kind = ("user", "item")[draw.integers(2)]
            nodes.append({"id": f"{kind}/{self._fresh}", "features": draw.normal(size=COLUMNS[kind]).tolist()})
            self._fresh += 1
        overrides = [
            {"id": f"{kind}/{node}", "features": draw.normal(size=COLUMNS[kind]).tolist()}
            for kind in COUNTS
            for node in draw.choice([*self.rows[kind]], draw.integers(0, 3), replace=False).tolist()
        ]
        for node in (*nodes, *overrides):
            kind, _, place = node["id"].partition("/")
            self.rows[kind][int(place)] = np.array(node["features"], np.float32)
        edges, features, times = list[list[str]](), list[list[float] | None](), list[int | None]()
        for _ in range(draw.integers(0, 9)):
            one = RELATIONS[draw.integers(3)]
            source, target = (int(draw.choice([*self.rows[kind]])) for kind in (one.source, one.target))
            edges.append([f"{one.source}/{source}", one.name, f"{one.target}/{target}"])
            has_payload = one.payload is not None
            features.append(draw.normal(size=2).tolist() if has_payload else None)
            times.append(int(draw.integers(0, 100)) if has_payload else None)
            self.edges[one.name].append((source, target, features[-1], times[-1]))
        return {"nodes": nodes, "edges": edges, "edgeFeatures": features, "edgeTimes": times, "overrides": overrides}

    def drawn_changes(self, draw: np.random.Generator) -> dict[str, Any]:
        """As of `drawn`, with edges and nodes that leave the graph."""
        body, removed = self.drawn(draw), []
        for one in RELATIONS:
            edges = self.edges[one.name]
            pairs = [edge[:2] for edge in edges]
            edge = edges[draw.integers(len(edges))]
            if pairs.count(edge[:2]) == 1:  # of equal ones it is not said which leaves
                edges.remove(edge)
                removed.append([f"{one.source}/{edge[0]}", one.name, f"{one.target}/{edge[1]}"])
        body |= {"removedEdges": removed, "removedNodes": []}
        for kind in COUNTS:
            (node,) = draw.choice([*self.rows[kind]], 1).tolist()
            del self.rows[kind][node]
            body["removedNodes"].append(f"{kind}/{node}")
            for one in RELATIONS:
                left = [end for end, name in enumerate((one.source, one.target)) if name == kind]
                edges = self.edges[one.name]
                self.edges[one.name] = [edge for edge in edges if all(edge[end] != node for end in left)]
        return body

    def arrays(self) -> dict[str, np.ndarray]:
        """What a module is given: nodes in the order of `rows`."""
        places = {kind: {node: place for place, node in enumerate(rows)} for kind, rows in self.rows.items()}
        arrays = {f"x_{kind}": np.stack([*rows.values()]) for kind, rows in self.rows.items()}
        for one in RELATIONS:
            edges = self.edges[one.name]
            pairs = [[places[one.source][edge[0]], places[one.target][edge[1]]] for edge in edges]
            arrays[one.name] = np.array(pairs, np.int64).T
            if one.payload is not None:
                arrays["attr"] = np.array([edge[2] for edge in edges], np.float32)
                arrays["time"] = np.array([edge[3] for edge in edges], np.int64)
        return arrays

    def scores(self, model: Model) -> np.ndarray:
        """Those of `users`."""
        with torch.no_grad():
            found: np.ndarray = model(**{name: torch.tensor(one) for name, one in self.arrays().items()})[0].numpy()
        return found
