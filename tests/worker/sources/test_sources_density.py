"""What is kept sparse, whatever the source: by the columns and what they hold, not by how they were written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from tests.support.graphs.graphs import npz_arrays, planted_graph, write_npz
from tests.support.graphs.tables import edges_of, import_tables, nodes_of

from gnnserve_api.spec.graph import GraphSource, Normalization, NpzSource
from gnnserve_worker.generation.training_set import fit_normalization
from gnnserve_worker.graph.sources import table_nodes
from gnnserve_worker.graph.sources.density import FEWEST_COLUMNS, FeatureBlocks, without_zeros
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import Features, GraphData

NODES, WORDS = 60, 200


def _words(columns: int = WORDS, share: float = 0.04) -> np.ndarray:
    draw = np.random.default_rng(0)
    return (draw.random((NODES, columns)) < share).astype(np.float32)


def _table(words: np.ndarray) -> dict[str, object]:
    table: dict[str, object] = {name: nodes_of(range(NODES))[name] for name in ("id", "kind")}
    return table | {"words": pa.array(words.tolist(), type=pa.list_(pa.float32()))}


def _read(tmp_path: Path, table: dict[str, object], suffix: str = ".parquet", **options: object) -> GraphData:
    return import_tables(tmp_path, suffix, table, edges_of([(0, 1), (2, 3)]), options)  # type: ignore[arg-type]


def _dense(features: Features) -> np.ndarray:
    return features if isinstance(features, np.ndarray) else features.toarray()


def test_a_list_column_of_words_stays_sparse_and_says_so(tmp_path: Path) -> None:
    words = _words()

    data = _read(tmp_path, _table(words))

    assert isinstance(data.features, sp.csr_array)
    assert data.features.dtype == np.float32
    np.testing.assert_array_equal(data.features.toarray(), words)
    (finding,) = [finding for finding in data.findings if finding.what == "feature columns kept sparse"]
    assert finding.count == WORDS
    assert finding.example == f"{np.count_nonzero(words) / words.size:.2%} of their numbers are not zero"


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_many_columns_that_are_mostly_zero_stay_sparse(tmp_path: Path, suffix: str) -> None:
    words = _words()
    table = {name: nodes_of(range(NODES))[name] for name in ("id", "kind")} | {
        f"word{column}": words[:, column].tolist() for column in range(WORDS)
    }

    data = _read(tmp_path, table, suffix)

    assert isinstance(data.features, sp.csr_array)
    np.testing.assert_array_equal(data.features.toarray(), words)


def test_dense_features_of_an_npz_file_that_are_mostly_zero_are_kept_sparse(tmp_path: Path) -> None:
    arrays = npz_arrays(planted_graph([0, 1], nodes=NODES)) | {"features": _words()}
    source = GraphSource(npz=NpzSource(uri=write_npz(tmp_path / "graph.npz", arrays).as_uri()))

    data = load_source(source, Path("unused"))

    assert isinstance(data.features, sp.csr_array)
    assert "feature columns kept sparse" in [finding.what for finding in data.findings]


def test_auto_normalises_them_by_row(tmp_path: Path) -> None:
    data = _read(tmp_path, _table(_words()))

    scaled = fit_normalization(data.features, Normalization.AUTO, np.arange(NODES)).features

    sums = _dense(scaled).sum(axis=1)
    np.testing.assert_allclose(sums[sums > 0], 1, rtol=1e-5)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(_words(share=0.35), id="a third is not zero"),
        pytest.param(_words(columns=FEWEST_COLUMNS - 1), id="few columns"),
        pytest.param(np.hstack([_words(), np.full((NODES, 1), 50_000, np.float32)]), id="an income beside the words"),
    ],
)
def test_other_features_stay_dense(tmp_path: Path, words: np.ndarray) -> None:
    data = _read(tmp_path, _table(words))

    assert isinstance(data.features, np.ndarray)
    np.testing.assert_array_equal(data.features, words)
    assert isinstance(without_zeros(words), np.ndarray)


def test_a_frequent_word_is_a_word_like_others(tmp_path: Path) -> None:
    data = _read(tmp_path, _table(np.hstack([_words(), np.ones((NODES, 1), np.float32)])))

    assert isinstance(data.features, sp.csr_array)


def test_missing_numbers_are_zero_or_the_mean_in_sparse_features_too(tmp_path: Path) -> None:
    words = _words()
    rows = words.tolist()
    rows[3][7] = None
    table = _table(words) | {"words": pa.array(rows, type=pa.list_(pa.float32()))}
    zero, mean = words.copy(), words.copy()
    zero[3, 7], mean[3, 7] = 0, np.delete(words[:, 7], 3).mean()

    for option, expected in (("Zero", zero), ("Mean", mean)):
        data = _read(tmp_path, table, missing=option)
        assert isinstance(data.features, sp.csr_array)
        np.testing.assert_allclose(data.features.toarray(), expected, rtol=1e-6)


def test_rows_come_in_the_order_of_their_ids(tmp_path: Path) -> None:
    words = _words()
    order = np.random.default_rng(1).permutation(NODES)

    data = _read(tmp_path, _table(words) | {"id": order.tolist()})

    np.testing.assert_array_equal(_dense(data.features)[order], words)
    assert isinstance(data.features, sp.csr_array)


def test_columns_of_texts_are_left_out_of_sparse_features(tmp_path: Path) -> None:
    words = _words()

    data = _read(tmp_path, _table(words) | {"late": [None] * (NODES - 1) + ["a text"]}, ".parquet")

    np.testing.assert_array_equal(_dense(data.features), words)


def test_no_more_than_one_batch_is_dense_while_a_sparse_table_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_nodes, "_BATCH_VALUES", 4 * WORDS)
    collected: list[FeatureBlocks] = []
    add = FeatureBlocks.add

    def watched(blocks: FeatureBlocks, block: np.ndarray) -> None:
        assert len(block) <= 4
        add(blocks, block)
        collected.append(blocks)

    monkeypatch.setattr(FeatureBlocks, "add", watched)
    words = _words()

    data = _read(tmp_path, _table(words))

    assert len(collected) == NODES / 4
    np.testing.assert_array_equal(_dense(data.features), words)


@pytest.mark.parametrize("columns", [5, 150])
def test_blocks_that_are_alike_in_nothing_add_up_to_the_same_features(columns: int) -> None:
    draw = np.random.default_rng(2)
    shares = (0.0, 0.9, 0.02, 0.5, 0.1)
    blocks = [(draw.random((7, columns)) < share).astype(np.float32) for share in shares]
    collecting = FeatureBlocks()
    for block in blocks:
        collecting.add(block)
    kept = np.arange(columns) % 3 > 0

    features = collecting.to_features(kept, np.zeros(columns, dtype=np.float32), None)

    np.testing.assert_array_equal(_dense(features), np.concatenate(blocks)[:, kept])
