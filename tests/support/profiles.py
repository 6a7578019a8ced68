"""Builders of profiles and revision manifests, with figures that a person can recognise in a table."""

from __future__ import annotations

from gnnserve_api.files.profile import LatencyProfile, Profile, VariantProfile
from gnnserve_api.files.repository import (
    SCHEMA_VERSION,
    FileEntry,
    NetworkManifest,
    RankingManifest,
    RevisionManifest,
    RowsManifest,
    TableManifest,
    VariantManifest,
    sealed,
)
from gnnserve_api.variants import Storage, projected_name, variant_name


def latency(seeds: int, p50_ms: float, gathered_bytes: int = 17_664) -> LatencyProfile:
    return LatencyProfile(
        seeds=seeds, runs=100, p50_ms=p50_ms, p99_ms=p50_ms * 1.4, mean_ms=p50_ms * 1.05, std_ms=p50_ms * 0.1,
        sample_ms=p50_ms * 0.1, gather_ms=p50_ms * 0.3, compute_ms=p50_ms * 0.6, gathered_bytes=gathered_bytes,
        window_p50_ms=p50_ms * 0.9, window_mean_ms=p50_ms * 0.94, window_std_ms=p50_ms * 0.09,
    )  # fmt: skip


def variant(
    factor: int,
    features: int = 64,
    validation: float = 0.9889,
    p50_ms: float = 0.213,
    storage: Storage = Storage.FLOAT32,
    *,
    projected: bool = False,
) -> VariantProfile:
    columns = features // factor
    return VariantProfile(
        name=projected_name(storage) if projected else variant_name(factor, storage), factor=factor,
        table=f"{'projected' if projected else 'features'}-{storage}", columns=columns, storage=storage,
        projected=projected, compute="float32" if storage is Storage.FLOAT32 else "bfloat16",
        validation_accuracy=validation, test_accuracy=validation - 0.0056,
        latency=tuple(latency(s, p50_ms * (1 + s / 40), 276 * 4 * columns * s) for s in (1, 32, 1024)),
        test_latency=latency(1024, p50_ms * 25, 270 * 4 * columns * 1024),
        size_bytes=4 * (columns * 256 + 2570), memory_bytes=4 * columns * 1797,
    )  # fmt: skip


def profile(*variants: VariantProfile) -> Profile:
    return Profile(
        metric="accuracy", machine="Intel(R) Xeon(R) Processor @ 2.90GHz, 2 threads", threads=2,
        validation_nodes=360, test_nodes=360,
        variants=variants or tuple(variant(k, validation=0.99 - 0.004 * k) for k in (1, 2, 4, 8, 16)),
    )  # fmt: skip


NETWORK = NetworkManifest(architecture="GraphSAGE", hidden=128, fanouts=(25, 10), classes=10)


def variants_of(shown: Profile, network: NetworkManifest = NETWORK) -> tuple[VariantManifest, ...]:
    """What a profile was measured of, each with weights of its own."""
    return tuple(
        VariantManifest(
            name=variant.name, family=variant.family, table=variant.table, columns=variant.columns,
            fanouts=network.fanouts, network=network, compute=variant.compute,
            weights=f"variants/{variant.name}/weights.safetensors",
        )
        for variant in shown.variants
    )  # fmt: skip


def revision_manifest(
    revision: str = "f0eae20c16c00ac0-1", created_at: str = "2026-01-01T00:00:00Z"
) -> RevisionManifest:
    """A sealed manifest as it is published; its files are not read here."""
    shown = profile()
    names = ["tables/features-float32.npy", *(f"variants/{v.name}/weights.safetensors" for v in shown.variants)]
    return sealed(RevisionManifest(
        schema_version=SCHEMA_VERSION, revision=revision, recipe="f0eae20c16c00ac0", graph="9f86d081884c7d65",
        model="0123456789abcdef",
        checkpoint=None, created_at=created_at, generator="gnnserve 0.1.0", scope="Inductive",
        ranking=RankingManifest(method="Lasso", settings={"epochs": 200.0}, columns=tuple(range(64))),
        tables={
            "features-float32": TableManifest(
                kind="features", storage=Storage.FLOAT32, columns=64, rows=RowsManifest(values=names[0], scales=None)
            )
        },
        variants=variants_of(shown), profile=shown,
        files={name: FileEntry(bytes=64, sha256="0" * 64) for name in names},
    ))  # fmt: skip
