"""The judgements of `make bench-routing`, and the graph that it is about."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.load import communities, routing
from benchmarks.load.communities import Communities
from benchmarks.load.routing import Bench, build_policies
from benchmarks.load.routing_verdict import Result, Verdict, describe, judge

from gnnserve_api.manifest import load_manifest
from gnnserve_api.pods.routing import RoutingMode

NAMES = ("x1", "x4", "x8")
SMALL = Communities(nodes=2000, links=12_000, features=16, classes=4, train=300, validation=200, test=100)


def result(attained: float, accuracy: float | None) -> Result:
    return Result(attained, accuracy, p99_ms=1.0, refused=0, requests=100, shares={}, late=0)


STATIC = {"x1": result(40, 95), "x4": result(99.2, 87.5), "x8": result(100, 70)}


@pytest.mark.parametrize(
    ("ours", "passed"),
    [
        pytest.param(result(99.0, 88), True, id="in time, and more accurate than any that is"),
        pytest.param(result(99.5, 87.5), True, id="as accurate as the best that is in time"),
        pytest.param(result(99.9, 87.4), False, id="less accurate than one that is in time"),
        pytest.param(result(98.9, 94), False, id="accurate, but late"),
        pytest.param(result(0.0, None), False, id="nobody answered"),
    ],
)
def test_routing_has_to_be_in_time_and_as_accurate_as_the_best_variant_that_is(ours: Result, passed: bool) -> None:
    verdict = judge({**STATIC, "ours": ours}, NAMES)
    assert verdict.passed is passed
    assert "best static x4 at 87.50" in verdict.text


def test_where_no_variant_is_in_time_routing_has_to_be_no_worse_than_the_fastest() -> None:
    beyond = {**STATIC, "x4": result(60, 87.5), "x8": result(94, 70)}
    assert judge({**beyond, "ours": result(94, 60)}, NAMES) == Verdict(
        True, "no variant attains 99 %; ours 94.00, x8 94.00"
    )
    assert not judge({**beyond, "ours": result(93.9, 90)}, NAMES).passed


def test_results_are_told_by_policy_and_static_variants_apart() -> None:
    told = describe({**STATIC, "ours": result(99, 88), "fast": result(98, 89)}, NAMES, Verdict(True, "so"))
    assert set(told) == {"ours", "fast", "static", "verdict"}
    assert {name: (of["attained"], of["accuracy"]) for name, of in told["static"].items()} == {
        "x1": (40, 95), "x4": (99.2, 87.5), "x8": (100, 70),
    }  # fmt: skip
    json.dumps(told)


@pytest.mark.parametrize("policy", ["ours", *NAMES, "metrics", "fast"])
def test_policies_are_manifests_that_gnnserve_reads(policy: str, tmp_path: Path) -> None:
    bench = Bench(1, 0, tmp_path / "graph.npz", tmp_path, tmp_path, objective_ms=300.0)
    spec = load_manifest(bench.write_manifest(policy, build_policies(NAMES, [policy])[policy])).spec
    modes = {"ours": RoutingMode.ADAPTIVE, "metrics": RoutingMode.METRICS, "fast": RoutingMode.ADAPTIVE}
    assert spec.routing.mode is modes.get(policy, RoutingMode.STATIC)
    assert (spec.routing.interval_seconds == routing.NEVER_S) is (policy == "fast")
    assert spec.objective.latency_ms == 300


def test_a_policy_that_there_is_not_is_named() -> None:
    with pytest.raises(SystemExit, match="--policies x2: choose from ours, x1, x4, x8, metrics, fast"):
        build_policies(NAMES, ["ours", "x2"])


def test_graph_says_a_little_of_the_class_in_every_column() -> None:
    arrays = communities.make(SMALL)
    indptr, indices = arrays["indptr"], arrays["indices"]
    assert indptr[-1] == len(indices)
    ends = np.repeat(np.arange(SMALL.nodes), np.diff(indptr))
    assert (ends != indices).all()
    links = set(zip(ends.tolist(), indices.tolist(), strict=True))
    assert len(links) == len(indices)
    assert all((b, a) in links for a, b in links)
    labels = arrays["labels"]
    # Within a class: 35 % of the links, and by chance a fourth of the rest; 5 % of the labels are drawn.
    assert 0.4 < (labels[ends] == labels[indices]).mean() < 0.6
    means = np.stack([arrays["features"][labels == label].mean(axis=0) for label in range(SMALL.classes)])
    assert (np.ptp(means, axis=0) > SMALL.signal / 2).mean() > 0.5
    masks = [arrays[name] for name in ("train_mask", "val_mask", "test_mask")]
    assert [int(mask.sum()) for mask in masks] == [300, 200, 100]
    assert not (masks[0] & masks[1] | masks[0] & masks[2] | masks[1] & masks[2]).any()


def test_graph_is_made_once_and_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(communities, "CACHE", tmp_path)
    file = communities.prepare(SMALL)
    content = file.read_bytes()
    monkeypatch.setattr(communities, "make", lambda _: pytest.fail("it is there already"))
    assert communities.prepare(SMALL) == file
    file.write_bytes(content[:-1])
    with pytest.raises(SystemExit, match="is damaged"):
        communities.prepare(SMALL)
