"""Embeddings of many nodes: over all neighbours what the network computes, sampled what the variant answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.graphs.graphs import network_manifest

from gnnserve_api.errors import InputError
from gnnserve_api.files.embeddings import Neighbours
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.embeddings.compute import check_embeddings, embedding_blocks
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_graph, publish_made_up
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.repository.repository import Repository

NODES, FEATURES = 60, 7
SAMPLED = (3, 2, 2)
NETWORKS = {
    "GraphSAGE": network_manifest("GraphSAGE", SAMPLED),
    "GIN": network_manifest("GIN", SAMPLED, mlp_hidden=10),
    "GCN": network_manifest("GCN", SAMPLED),
    "GAT": network_manifest("GAT", SAMPLED, heads=2, output_heads=3),
}
VARIANTS = [
    MadeUpVariant("x1", 1, "features", Storage.FLOAT32, "float32"),
    MadeUpVariant("x2-int8", 2, "features", Storage.INT8, "bfloat16"),
    MadeUpVariant("projected", 1, "projected", Storage.FLOAT32, "float32"),
]


def published(root: Path, network: NetworkManifest) -> LoadedRevision:
    repository = Repository(root, "tests", "embeddings")
    made = publish_made_up(repository, made_up_graph(NODES, 4, FEATURES, 3), network, VARIANTS)
    return load_revision(repository, made.revision, build=build_exact)


def over_all(revision: LoadedRevision, name: str) -> np.ndarray:
    """By the function that answers requests, with every hop's neighbours read."""
    variant = revision.variants[name]
    whole = replace(variant, fanouts=(-1,) * len(variant.fanouts))
    found = infer_batch(replace(revision, variants={name: whole}), name, np.arange(NODES), 0).embeddings
    assert found is not None
    return found


@pytest.mark.parametrize("architecture", NETWORKS)
@pytest.mark.parametrize("layers", [2, 3])
def test_over_all_neighbours_they_are_the_networks_last_hidden_layer(
    tmp_path: Path, architecture: str, layers: int
) -> None:
    revision = published(tmp_path, msgspec.structs.replace(NETWORKS[architecture], fanouts=SAMPLED[:layers]))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    some = np.array([5, 3, 3, NODES - 1])
    for name in revision.variants:
        expected = over_all(revision, name)
        found = np.concatenate([*embedding_blocks(revision, name, None, Neighbours.ALL, 0, scratch)])
        np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-5)
        for file in scratch.iterdir():
            file.unlink()
        found = np.concatenate([*embedding_blocks(revision, name, some, Neighbours.ALL, 0, scratch)])
        np.testing.assert_allclose(found, expected[some], atol=2e-5, rtol=2e-5)
        for file in scratch.iterdir():
            file.unlink()


def test_sampled_they_are_what_the_variant_answers(tmp_path: Path) -> None:
    revision = published(tmp_path, NETWORKS["GraphSAGE"])
    some = np.array([5, 3, NODES - 1])
    (found,) = embedding_blocks(revision, "x1", some, Neighbours.SAMPLED, 7, tmp_path)
    np.testing.assert_array_equal(found, infer_batch(revision, "x1", some, 7).embeddings)
    other = np.concatenate([*embedding_blocks(revision, "x1", None, Neighbours.SAMPLED, 8, tmp_path)])
    assert other.shape == (NODES, 8)
    assert not np.array_equal(other[some], found)


def test_a_network_of_one_layer_has_none(tmp_path: Path) -> None:
    revision = published(tmp_path, network_manifest("GraphSAGE", (3,)))
    assert revision.manifest is not None
    with pytest.raises(InputError, match=r"x1 has no hidden layer .* none of its variants has any"):
        check_embeddings(revision.manifest, "x1")
    with pytest.raises(InputError, match="has no 'x3'"):
        check_embeddings(revision.manifest, "x3")
