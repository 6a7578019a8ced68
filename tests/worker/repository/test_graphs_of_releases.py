"""Graphs in repositories of earlier releases: read as they are, and written as they were, byte for byte.

`graphs_of_releases/` has the `graph.json` that a commit wrote of each graph here; it names every array with its
SHA-256, so that equal manifests are equal repositories.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.generation.repository import repository_in
from tests.support.graphs.released_graphs import GRAPHS, LISTED, MADE_OF, ONCE, several_types

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_api.files.graph_schema import NAMES_OF_TYPES, TypeManifest
from gnnserve_api.files.repository import GraphManifest

WRITTEN = Path(__file__).with_name("graphs_of_releases")


FILES = sorted(WRITTEN.glob("*/*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name} {path.stem}")
def test_a_graph_is_written_as_the_release_wrote_it(tmp_path: Path, path: Path) -> None:
    repository = repository_in(tmp_path)
    repository.put_graph(GRAPHS[path.stem])
    assert (repository.folder / "graphs" / path.stem / "graph.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name} {path.stem}")
def test_types_and_relations_are_read_whether_the_file_names_them_or_not(path: Path) -> None:
    manifest, data = msgspec.json.decode(path.read_bytes(), type=GraphManifest), GRAPHS[path.stem]
    schema = manifest.schema
    if schema.names is NAMES_OF_TYPES:
        assert schema == data.schema
        assert [one.edge_rules for one in schema.relations] == [ONCE, LISTED, LISTED]
        return
    kind = "Strings" if path.stem == "named" else "Positions"
    assert schema.types == (TypeManifest("", 6, 4, kind),)  # type: ignore[arg-type]
    (relation,) = schema.relations
    assert (relation.source, relation.name, relation.target, relation.edges) == ("", "", "", 7)
    if path.stem == "version":
        assert relation.edge_rules == EdgeRules(Direction.REVERSED)


@pytest.mark.parametrize("name", ["version", "version-of-types"])
def test_a_version_is_read_as_it_was_put(tmp_path: Path, name: str) -> None:
    repository, data = repository_in(tmp_path), GRAPHS[name]
    repository.put_graph(data)
    found = repository.read_graph(data.digest)
    assert found.schema == data.schema
    assert found.made_of == MADE_OF
    for kind, given in zip(found.types, data.types, strict=True):
        assert kind.feature_columns == given.feature_columns
        np.testing.assert_array_equal(kind.features, given.features)  # type: ignore[arg-type]
    for one, put in zip(found.relations, data.relations, strict=True):
        assert (one.key, one.reverse_of, one.edge_rules) == (put.key, put.reverse_of, put.edge_rules)
        np.testing.assert_array_equal(one.lists.indptr, put.lists.indptr)
        np.testing.assert_array_equal(one.lists.indices, put.lists.indices)


def test_rules_that_two_words_do_not_say_are_written_in_whole(tmp_path: Path) -> None:
    repository, rules = repository_in(tmp_path), EdgeRules(Direction.REVERSED, Duplicates.KEEP, SelfLoops.REMOVE)
    data = several_types("rules", made_of=MADE_OF)
    first, *others = data.relations
    repository.put_graph(replace(data, relations=(replace(first, edge_rules=rules), *others)))
    assert [one.edge_rules for one in repository.read_graph("rules").relations] == [rules, LISTED, LISTED]
    written = msgspec.json.decode((repository.folder / "graphs" / "rules" / "graph.json").read_bytes())
    assert ["edgeRules" in one for one in written["typed"]["relations"]] == [True, False, False]
