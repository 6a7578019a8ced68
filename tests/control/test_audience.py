"""Each field does what its audience says: an edit reaches those that the field is for, and changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.operator.observed import Namespace, make_result, make_settings
from tests.support.operator.older_release import released_specs

from gnnserve_api.pods.generation import encode_message
from gnnserve_api.spec.audience import Audience, audiences_of
from gnnserve_api.spec.embeddings import EmbeddingsSpec
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.decide import jobs
from gnnserve_operator.desired.deployment import MountedClaim, build_worker_template
from gnnserve_operator.desired.job import build_embeddings_job, build_job, generation_manifest, handed_recipe
from gnnserve_operator.desired.metadata import Parent, digest_of
from gnnserve_operator.desired.pool import entry_of

PARENT, SETTINGS = Parent("digits", "default", "uid"), make_settings()
EXAMPLES = Path(__file__).parents[2] / "examples"
LINKS = (
    "task: {links: {dimensions: 32}}, model: {architecture: LightGCN, fanouts: [0]}, "
    "variants: {pruning: {factors: [1]}}"
)


def read(text: str) -> GNNServiceSpec:
    fields = yaml.safe_load(f"{{{text}}}")
    return GNNServiceSpec.model_validate({"graph": {"source": {"builtin": "Digits"}}, **fields})


PROGRAM = "model: {program: {uri: 'file:///a'%s}, expected: {uri: 'file:///b'}}"
SQLITE = "endpoint: {}, updates: {log: {sqlite: {}}%s}"
FOLLOWED = "variants: {stored: [2], storedFollowChanges: true}"
CLAIM = "repository: {claim: {accessMode: ReadWriteMany%s}, history: 3}"
CANARY = "repository: {history: 3}, routing: {canary: {revision: %s, percent: %d}}"
POOLED = "worker: {poolRef: {name: shared}, share: %d}"
GPU = "worker: {device: GPU, gpu: {%s}}"
EDITS = {
    "graph.source": ("graph: {source: {npz: {uri: 'file:///a'}}}", "graph: {source: {npz: {uri: 'file:///b'}}}"),
    "graph.source.ogb.mirror": (
        "graph: {source: {ogb: {name: ogbn-arxiv}}}",
        "graph: {source: {ogb: {name: ogbn-arxiv, mirror: 'file:///a'}}}",
    ),
    "graph.source.pyg.mirror": (
        "graph: {source: {pyg: {name: Cora}}}",
        "graph: {source: {pyg: {name: Cora, mirror: 'file:///a'}}}",
    ),
    "graph.volume": (
        "graph: {source: {builtin: Digits}, volume: {claimName: a}}",
        "graph: {source: {builtin: Digits}, volume: {claimName: b}}",
    ),
    "graph.normalization": ("", "graph: {source: {builtin: Digits}, normalization: Disabled}"),
    "model": ("", "model: {hidden: 16}"),
    "model.program.limits": (PROGRAM % "", PROGRAM % ", limits: {seconds: 5}"),
    "task": (LINKS, LINKS.replace("32", "16")),
    "variants": ("", "variants: {pruning: {factors: [1]}}"),
    "objective": ("", "objective: {latencyMs: 5}"),
    "objective.percentile": ("", "objective: {percentile: 95}"),
    "routing.mode": ("routing: {mode: Static, variant: x1}", "routing: {mode: Weights, weights: {x1: 1}}"),
    "routing.variant": ("routing: {mode: Static, variant: x1}", "routing: {mode: Static, variant: x2}"),
    "routing.weights": ("routing: {mode: Weights, weights: {x1: 1}}", "routing: {mode: Weights, weights: {x2: 1}}"),
    "routing.interval_seconds": ("", "routing: {intervalSeconds: 60}"),
    "routing.shadow_permille": ("", "routing: {shadowPermille: 5}"),
    "routing.prometheus": ("", "routing: {prometheus: {url: 'http://prometheus'}}"),
    "routing.canary.revision": (CANARY % ("a" * 12, 5), CANARY % ("b" * 12, 5)),
    "routing.canary.percent": (CANARY % ("a" * 12, 5), CANARY % ("a" * 12, 6)),
    "endpoint.tls": ("", "endpoint: {tls: {secretName: a}}"),
    "endpoint.tokens": ("", "endpoint: {tokens: {secretName: a}}"),
    "endpoint.write_tokens": ("", "endpoint: {writeTokens: {secretName: a}}"),
    "endpoint.grpc": ("", "endpoint: {grpc: true}"),
    "endpoint.service": ("", "endpoint: {service: {type: NodePort}}"),
    "endpoint.overlay": ("", "endpoint: {overlay: {maxNodes: 1}}"),
    "worker": ("", "worker: {nodeSelector: {disk: fast}}"),
    "worker.replicas": ("", "worker: {replicas: 2}"),
    "worker.rollout": ("", "worker: {rollout: {maxUnavailable: 1}}"),
    "worker.batching": ("", "worker: {batching: {maxSeeds: 7}}"),
    "worker.pool_ref": ("", "worker: {poolRef: {name: shared}}"),
    "worker.share": (POOLED % 1, POOLED % 2),
    "generation": ("", "generation: {priorityClassName: high}"),
    "repository.claim_name": ("repository: {claimName: a}", "repository: {claimName: b}"),
    "repository.claim.storage": (CLAIM % "", CLAIM % ", storage: 1Gi"),
    "repository.claim.storage_class_name": (CLAIM % "", CLAIM % ", storageClassName: slow"),
    "repository.claim.access_mode": ("repository: {claim: {}}", "repository: {claim: {accessMode: ReadWriteMany}}"),
    "repository.deletion_policy": ("", "repository: {deletionPolicy: Retain}"),
    "repository.history": ("repository: {history: 3}", "repository: {history: 4}"),
    "updates.log": ("", SQLITE % ""),
    "updates.adopt": (SQLITE % "", SQLITE % f", adopt: {'0' * 8}-{'0000-' * 3}{'0' * 12}"),
    "updates.max_delta": (SQLITE % "", SQLITE % ", maxDelta: 1Gi"),
    "updates.compaction": (SQLITE % "", SQLITE % ", compaction: {deltaPercent: 20}"),
    "updates.refresh": (f"{FOLLOWED}, {SQLITE % ''}", f"{FOLLOWED}, {SQLITE % ', refresh: {rows: 1}'}"),
    "embeddings": ("embeddings: {}", "embeddings: {variant: x1}"),
    "embeddings.index": (
        "embeddings: {sinks: [{postgres: {secretName: a}}]}",
        "embeddings: {index: false, sinks: [{postgres: {secretName: a}}]}",
    ),
    "image": ("", "image: mine"),
    "image_pull_secrets": ("", "imagePullSecrets: [mine]"),
    "revision": (f"revision: {'a' * 12}", f"revision: {'b' * 12}"),
    "suspend": ("", "suspend: true"),
}
"""Specs before and after an edit of that field, or of a field within that section."""


def receivers(spec: GNNServiceSpec) -> Iterator[tuple[Audience, object]]:
    """What each audience gets of a spec."""
    claim = spec.repository.claim_name or "digits"
    with_embeddings = spec.model_copy(update={"embeddings": spec.embeddings or EmbeddingsSpec()})
    embeddings = build_embeddings_job(PARENT, with_embeddings, SETTINGS, claim, "rev-1")
    assert embeddings is not None
    handed = generation_manifest(PARENT, spec)
    is_return = spec.revision is not None
    yield Audience.REVISION, None if is_return else spec.recipe()
    yield Audience.GENERATION, None if is_return else handed
    yield Audience.RETURN, generation_manifest(PARENT, spec.model_copy(update={"revision": spec.revision or "a" * 12}))
    yield Audience.EMBEDDINGS, manifest_of(embeddings)
    yield Audience.PODS, digest_of(build_worker_template(PARENT, spec, SETTINGS, MountedClaim(claim)))
    yield Audience.WORKERS, (spec.routing_table("rev-1", "recipe"), entry_of("digits", "uid", spec, 8100).share)


def manifest_of(job: dict[str, Any]) -> str:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return str(next(each["value"] for each in container["env"] if each["name"] == "GNNSERVE_MANIFEST"))


def section_of(path: str) -> str:
    """The row of `EDITS` that stands for a field: its own, or that of the nearest section with one."""
    while path and path not in EDITS:
        path = path.rpartition(".")[0]
    return path


def test_each_audience_is_proved_by_an_edit() -> None:
    said: dict[str, set[Audience]] = {}
    for path, audience in audiences_of(GNNServiceSpec):
        said.setdefault(section_of(path), set()).add(audience)
    assert "" not in said, "give the field a row in EDITS"
    assert said.keys() == EDITS.keys()
    assert [path for path, audiences in said.items() if len(audiences) > 1] == []


@pytest.mark.parametrize("path", EDITS)
def test_an_edit_reaches_those_that_the_field_is_for_and_nobody_else(path: str) -> None:
    before, after = (dict(receivers(read(text))) for text in EDITS[path])
    reached = Audience(0)
    for audience, got in after.items():
        if got != before[audience]:
            reached |= audience
    (said,) = {audience for each, audience in audiences_of(GNNServiceSpec) if section_of(each) == path}
    if said & Audience.REVISION:
        said |= Audience.GENERATION  # it is handed what a revision is made of
    assert reached == said & ~Audience.OPERATOR


def test_the_task_reaches_the_job_and_an_edit_of_it_makes_another() -> None:
    spec, edited = read(LINKS), read(LINKS.replace("32", "16"))
    assert '"task":{"links":{"dimensions":32}}' in generation_manifest(PARENT, spec)
    jobs = {build_job(PARENT, each, SETTINGS, "claim")["metadata"]["name"] for each in (spec, edited)}
    assert len(jobs) == 2
    assert '"task":{"links":{}}' in generation_manifest(PARENT, read("task: {links: {}}"))


def specs() -> dict[str, GNNServiceSpec]:
    stored = {name: GNNServiceSpec.model_validate(released.spec) for name, released in released_specs().items()}
    edits = {f"{path}, {place}": read(text) for path, row in EDITS.items() for place, text in enumerate(row)}
    shown = {
        str(path.relative_to(EXAMPLES)): GNNServiceSpec.model_validate(document["spec"])
        for path in sorted(EXAMPLES.rglob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if document.get("kind") == "GNNService"
    }
    return stored | edits | shown


SPECS = specs()


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_job_generates_the_recipe_that_it_is_asked_for(spec: GNNServiceSpec) -> None:
    assert handed_recipe(spec) == spec.recipe()


def unreadable_result(recipe: str) -> str:
    namespace = Namespace()
    namespace.settle()
    namespace.finish_job(message=encode_message(make_result(recipe=recipe)))
    namespace.settle()
    return str(namespace.condition("Ready")["message"])


def test_another_recipe_is_blamed_on_the_image_only_where_the_operator_asked_for_the_right_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = unreadable_result("0123456789abcdef")
    assert "its image and the operator are of different versions. Correct spec.image" in words
    monkeypatch.setattr(jobs, "handed_recipe", lambda _spec: "0123456789abcdef")
    words = unreadable_result("0123456789abcdef")
    assert "different versions" not in words
    assert "a defect of the operator" in words
