"""Subjects of reports: profiles as they may come, without a repository."""

from __future__ import annotations

import functools
from dataclasses import replace

import msgspec
from tests.support.profiles import latency, revision_manifest, variant

from gnnserve_api.files.profile import (
    LinkScores,
    StaleChanges,
    StaleKind,
    StaleLayerProfile,
    StalePoint,
    VariantProfile,
    WholeNeighbours,
)
from gnnserve_api.files.provenance import provenance_of
from gnnserve_api.files.repository import RankingRun, RevisionManifest
from gnnserve_api.variants import Storage
from gnnserve_cli.report.build import build_report
from gnnserve_cli.report.html import build_page
from gnnserve_cli.report.subject import ReportSubject


def manifest_of(*variants: VariantProfile, others: int = 0, **changes: object) -> RevisionManifest:
    """`changes`: fields of the profile. `others`: rankings of other seeds, of which the first columns agree."""
    manifest = revision_manifest()
    profile = manifest.profile if not variants else msgspec.structs.replace(manifest.profile, variants=variants)
    columns = manifest.ranking.columns
    runs = tuple(
        RankingRun(seed=seed, columns=(*columns[: 8 - seed], *reversed(columns[8 - seed :])))
        for seed in range(1, others + 1)
    )
    return msgspec.structs.replace(
        manifest,
        ranking=msgspec.structs.replace(manifest.ranking, others=runs),
        profile=msgspec.structs.replace(profile, **changes),
    )


def subject_of(
    *variants: VariantProfile, others: int = 0, service: str = "default/digits", source: str = "builtin Digits",
    **changes: object,
) -> ReportSubject:  # fmt: skip
    manifest = manifest_of(*variants, others=others, **changes)
    return ReportSubject(
        service=service,
        revision=manifest.revision,
        recipe=manifest.recipe,
        nodes=1797,
        features=64,
        classes=10,
        multi_label=manifest.profile.metric == "f1Micro",
        profile=manifest.profile,
        provenance=provenance_of(manifest, source, 24_680, 1078),
    )


def five_widths() -> list[VariantProfile]:
    return [variant(k, validation=0.99 - 0.004 * k, p50_ms=0.05 + 0.16 / k) for k in (1, 2, 4, 8, 16)]


def every_storage() -> ReportSubject:
    """17 variants from 0.03 to 300 ms, names of every length."""
    made = []
    for number, storage in enumerate(Storage):
        made += [
            variant(k, validation=0.95 - 0.02 * i - 0.003 * number, p50_ms=12 / k / (1 + number / 3), storage=storage)
            for i, k in enumerate((1, 2, 4, 16))
        ]
    made.append(variant(1, 128, validation=0.949, p50_ms=1.1, storage=Storage.BFLOAT16, projected=True))
    return subject_of(*made, others=2)


def without_test_nodes() -> ReportSubject:
    made = [untested(variant(k, validation=0.99 - 0.004 * k)) for k in (1, 4)]
    return subject_of(*made, test_nodes=0)


def untested(one: VariantProfile) -> VariantProfile:
    return msgspec.structs.replace(one, test_accuracy=None, test_latency=None)


def without_stages(one: VariantProfile) -> VariantProfile:
    """A profile without stages, as the made-up ones of `inference/made_up.py`."""
    points = tuple(
        msgspec.structs.replace(point, sample_ms=0, gather_ms=0, compute_ms=0, window_p50_ms=0, gathered_bytes=0)
        for point in one.latency
    )
    return msgspec.structs.replace(one, latency=points)


def drifting() -> ReportSubject:
    """A profile like the paper's Products: test nodes are less accurate, and have fewer neighbours."""
    made = [
        msgspec.structs.replace(
            one, test_accuracy=one.validation_accuracy - 0.12, test_latency=latency(1024, 3.0, 9_000_000)
        )
        for one in (variant(k, validation=0.9 - 0.01 * k) for k in (1, 2, 4, 8))
    ]
    return subject_of(*made, validation_nodes=40_000, test_nodes=50_000)


def stale_changes(kind: StaleKind, share: float, *differing: float, part_ms: float = 0.1) -> StaleChanges:
    """`differing`: with 0, 5, 20 and 100 % of the stale rows made anew."""
    measured = zip((0.0, 0.05, 0.2, 1.0), (0.0, 1.0, 3.0, 12.0), (0.02, 0.06, part_ms, 0.3), differing, strict=True)
    points = tuple(StalePoint(made, rows, p50_ms, found, 0.9 - found / 2) for made, rows, p50_ms, found in measured)
    return StaleChanges(kind, round(12_340 * share), share, 256, share / 2, 0.9, points)


def stale_layers(*changes: StaleChanges, accuracy: float = 0.98, nodes: int = 360) -> ReportSubject:
    """The second layer of three is stored, and may be stale; x1 takes 0.21 ms for a node, projected 0.25 ms."""
    stored = msgspec.structs.replace(
        variant(1, 128, accuracy, 0.02), name="stored2", table="stored2-float32", family="stored-deeper-following"
    )
    layer = StaleLayerProfile(2, "stored2", ("stored2",), 0.018, WholeNeighbours("x1", 5.9), changes)
    made = variant(1), stored, variant(1, 128, p50_ms=0.25, projected=True)
    return subject_of(*made, stale=(layer,), validation_nodes=nodes)


def of_links() -> ReportSubject:
    """17 variants that score pairs: of 360 nodes there are 840 validation links, and as many test links."""
    scores = LinkScores(840, 0.9, 0.9, 460, 240, 0.2, 0.7, 0.4, 20)
    subject = every_storage()
    made = [
        msgspec.structs.replace(one, validation_figures=scores, test_figures=scores) for one in subject.profile.variants
    ]
    return replace(subject, profile=msgspec.structs.replace(subject.profile, metric="rocAuc", variants=tuple(made)))


CASES = {
    "five widths": lambda: subject_of(*five_widths(), others=2),
    "seventeen variants": every_storage,
    "links": of_links,
    "one variant": lambda: subject_of(variant(1)),
    "no test nodes": without_test_nodes,
    "drift": drifting,
    "several labels per node": lambda: subject_of(metric="f1Micro"),
    "all neighbours": lambda: _with_network(subject_of(), fanouts=(-1, -1)),
    "GIN of one layer": lambda: _with_network(subject_of(), architecture="GIN", fanouts=(10,)),
    "stages of nothing": lambda: subject_of(*(without_stages(variant(k)) for k in (1, 2, 4))),
    "two equal variants": lambda: subject_of(variant(1), variant(2, validation=0.9889)),
    "stale layers": lambda: stale_layers(
        stale_changes("edges", 0.01, 0.002, 0.002, 0.0, 0.0),
        stale_changes("edges", 0.05, 0.02, 0.01, 0.004, 0.0),
        stale_changes("edges", 0.2, 0.05, 0.04, 0.03, 0.0),
        stale_changes("newNodes", 0.003, 0.3, 0.2, 0.05, 0.0),
        stale_changes("overlays", 0.003, 0.02, 0.02, 0.01, 0.0),
    ),
}


def _with_network(subject: ReportSubject, **changes: object) -> ReportSubject:
    network = msgspec.structs.replace(subject.provenance.network, **changes)
    return replace(subject, provenance=msgspec.structs.replace(subject.provenance, network=network))


@functools.cache
def page_of(case: str) -> str:
    """Drawn once for all tests: the figures take a second."""
    return build_page(build_report(CASES[case](), "gnnserve test"))
