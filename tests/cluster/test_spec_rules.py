"""What the CRD refuses of a spec and of a change of it, and what it must let pass, asked of an API server alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.cluster.harness.client import wait_for
from tests.cluster.harness.session import running_api_server
from tests.matrix.cells import REFUSED as REFUSED_CELLS
from tests.support.kubernetes.api_contract import Api, OverHttp, client_of, made, refusal
from tests.support.operator.observed import make_service, make_settings
from tests.support.schema_cases import BREAKS_RULE

from gnnserve_api.generated.schema import crd
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.desired.deployment import MountedClaim, build_deployment
from gnnserve_operator.desired.metadata import STATUS_FIELD_MANAGER, Parent

pytestmark = pytest.mark.timeout(2400)  # the first may wait until Kubernetes is compiled
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GNNSERVICES = "/apis/gnnserve.dev/v1alpha1/gnnservices"
GRAPH: dict[str, Any] = {"source": {"builtin": "Digits"}}
TYPED: dict[str, Any] = {"source": {"typed": {"npz": {"uri": "file:///graph"}}}}
PROGRAM: dict[str, Any] = {"program": {"uri": "file:///model"}, "expected": {"uri": "file:///expected.npz"}}


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with running_api_server(controllers=False) as cluster, client_of(Path(cluster.kubeconfig)) as client:
        client.post("/api/v1/namespaces", json={"metadata": {"name": "default"}})
        client.post(CRDS, json=crd()).raise_for_status()
        wait_for("the CRD to be served", lambda: client.get(GNNSERVICES).status_code == 200)
        yield Api(OverHttp(client), "default")


def applied(api: Api, name: str, **spec: Any) -> Any:
    return api.apply(api.object("GNNService", name, spec={"graph": GRAPH, **spec}), "user", force=True)


def stored(api: Api, name: str, storage: str | None, repository: dict[str, Any]) -> None:
    """A service, with what its operator says that the claim has."""
    made(applied(api, name, repository=repository))
    if storage is not None:
        status = {"observedGeneration": 1, "repositoryStorage": storage}
        made(api.apply(api.object("GNNService", name, status=status), STATUS_FIELD_MANAGER, "status"))


KINDS_OF_GRAPHS: dict[str, Any] = {
    "program-over-one-type": {"model": PROGRAM, "variants": {"oneRow": [{"hops": 0}]}},
    "program-beside-a-program": {"model": PROGRAM, "variants": {"given": [PROGRAM]}},
    "program-over-types": {"graph": TYPED, "model": PROGRAM, "variants": {"storage": ["float32", "int8"]}},
    "products-over-types": {"graph": TYPED, "model": {"architecture": "RGCN"}, "variants": {"stored": [1]}},
    "batches-over-types": {"graph": TYPED, "model": {"training": {"batches": "WholeGraph"}}},
}
"""Specs that a rule about another kind of graph, or about models that are no programs, would refuse."""


@pytest.mark.parametrize("case", KINDS_OF_GRAPHS)
def test_rules_of_one_kind_of_graph_leave_others_alone(case: str, api: Api) -> None:
    GNNServiceSpec.model_validate({"graph": GRAPH, **KINDS_OF_GRAPHS[case]})
    made(applied(api, case, **KINDS_OF_GRAPHS[case]))


MODELS: list[dict[str, Any]] = [
    {}, {"architecture": "GIN"}, {"architecture": "RGCN"}, {"training": {"batches": "Sampled"}},
    {"relationFanouts": [{"relation": "buys", "fanouts": [5, 5]}]}, PROGRAM,
]  # fmt: skip
VARIANTS: list[dict[str, Any]] = [
    {}, {"oneRow": [{"hops": 0}]}, {"stored": [2]}, {"stored": [1], "storedFollowChanges": True},
]  # fmt: skip
BESIDE: list[dict[str, Any]] = [{}, {"task": {"links": {}}}, {"updates": {"log": {"sqlite": {}}}}]


@pytest.mark.parametrize("graph", [GRAPH, TYPED], ids=["one type", "several types"])
def test_what_goes_with_a_kind_of_graph_is_the_same_for_the_api_server_and_pydantic(
    graph: dict[str, Any], api: Api
) -> None:
    taken = 0
    for model, variants, beside in itertools.product(MODELS, VARIANTS, BESIDE):
        spec = {"graph": graph, "model": model, "variants": variants, **beside}
        try:
            GNNServiceSpec.model_validate(spec)
            problems = 0
        except ValidationError as error:
            problems = error.error_count()
        answer = applied(api, "any-kind", **spec)
        assert (problems > 0) == (answer.code >= 400), (spec, answer.body)
        taken += problems == 0
    assert taken > 10


@pytest.mark.parametrize("message", BREAKS_RULE)
def test_a_spec_that_breaks_a_rule_is_refused_as_pydantic_refuses_it(message: str, api: Api) -> None:
    code, _, said = refusal(applied(api, "broken", **BREAKS_RULE[message]))
    assert code == 422
    assert message in said


_FEW = 7
"""First words of a sentence, which name the field and what it must not be beside."""
REFUSED_TOGETHER = {cell.refusal: cell for cell in REFUSED_CELLS}


@pytest.mark.parametrize("sentence", REFUSED_TOGETHER, ids=lambda sentence: sentence[:60])
def test_what_does_not_go_together_is_refused_in_the_sentence_of_the_page(sentence: str, api: Api) -> None:
    """All of docs/capabilities.md can be said in CEL: a sentence that only our own validation knows fails here."""
    spec = REFUSED_TOGETHER[sentence].spec
    # In a cluster files are on a volume.
    spec["graph"]["volume"] = {"claimName": "data"}
    code, _, said = refusal(applied(api, "together", **spec))
    assert code == 422
    # The API server says it without values, and of one of several fields all of their names.
    page = _words(sentence.removeprefix("spec.model: "))
    ours = [_words(one) for one in _messages(crd()) if one in said]
    assert any(_is_part(one, page) or _is_part(page[:_FEW], one) for one in ours), said


def _messages(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (rule["message"] for rule in node.get("x-kubernetes-validations", ()))
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _messages(child)


def _words(sentence: str) -> list[str]:
    return [word.strip(",;:") for word in sentence.split()]


def _is_part(words: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in words)


def claim(storage: str, **more: str) -> dict[str, Any]:
    return {"claim": {"storage": storage, **more}}


ALLOWED = {
    "growth": (claim("5Gi"), "5Gi", claim("6000Mi")),
    "back-after-a-refused-growth": (claim("20Gi"), "10Gi", claim("10Gi")),
    "back-to-the-default-after-a-refused-growth": (claim("20Gi"), "10Gi", {}),
    "back-in-part": (claim("40Gi"), "10Gi", claim("20Gi")),
    "the-default-written-out": ({}, "10Gi", claim("10Gi")),
    "more-than-the-default": ({}, "10Gi", claim("20Gi")),
    "less-before-a-claim-is-there": (claim("20Gi"), None, claim("5Gi")),
    "growth-below-what-an-autoscaler-made-of-it": (claim("10Gi"), "53687091200", claim("20Gi")),
    "nothing": (claim("10Gi"), "50Gi", claim("10Gi")),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_a_size_that_the_claim_can_have_is_taken(case: str, api: Api) -> None:
    before, storage, after = ALLOWED[case]
    stored(api, case, storage, before)
    made(applied(api, case, repository=after))


NAMED = "storageClassName and accessMode are fixed once the claim is made"
REFUSED = {
    "less-than-it-has": (
        claim("5Gi"), "5Gi", claim("4Gi"),
        "spec.repository.claim.storage 4Gi is less than the 5Gi that the claim has, and a claim cannot shrink",
    ),
    "less-than-the-default": (
        {}, "10Gi", claim("4Gi"), "spec.repository.claim.storage 4Gi is less than the 10Gi that the claim has",
    ),
    "back-after-a-growth-that-came": (
        claim("20Gi"), "20Gi", {}, "spec.repository.claim.storage 10Gi is less than the 20Gi that the claim has",
    ),
    "another-class": (claim("5Gi", storageClassName="a"), "5Gi", claim("5Gi", storageClassName="b"), NAMED),
    "a-class-later": ({}, "10Gi", claim("10Gi", storageClassName="b"), NAMED),
    "a-class-taken-away": (claim("10Gi", storageClassName="b"), "10Gi", {}, NAMED),
    "a-claim-of-ones-own-later": ({}, "10Gi", {"claimName": "mine"}, "claimName is fixed"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_claim_cannot_become_is_refused_in_a_sentence(case: str, api: Api) -> None:
    before, storage, after, said = REFUSED[case]
    stored(api, case, storage, before)
    code, _, message = refusal(applied(api, case, repository=after))
    assert code == 422
    assert said in message


def resources(requests: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    return {"resources": {"requests": requests, "limits": limits}}


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PODS = {
    "more memory than the limit": (
        resources({"memory": "4Gi"}, {"memory": "4000M"}), "requests must not be more than limits"
    ),
    "more processors than the limit": (resources({"cpu": 2}, {"cpu": "1500m"}), "requests must not be more than"),
    "a resource without a domain": (resources({"gpu": 1}, {}), "the names of requests must be cpu, memory"),
    "a misspelt limit": (resources({}, {"mem": "1Gi"}), "the names of limits must be cpu, memory"),
    "a toleration of every key with a value": (
        {"tolerations": [{"operator": "Exists", "value": "x"}]}, "value must not be set with operator Exists"
    ),
    "a toleration without a key": ({"tolerations": [{"value": "x"}]}, "key may be absent with operator Exists only"),
    "a key that no label has": ({"tolerations": [{"key": "a//b"}]}, "must be the name of a label"),
    "a runtime class that none is called": ({"runtimeClassName": "NVIDIA"}, "must be the name of a RuntimeClass"),
    "a priority that none is called": ({"priorityClassName": "HIGH"}, "must be the name of a PriorityClass"),
    "a label of ours": ({"podLabels": {"gnnserve.dev/service": "b"}}, "podLabels must not have app.kubernetes.io/name"),
    "a label of Kubernetes": ({"podLabels": {"job-name": "b"}}, "podLabels must not have app.kubernetes.io/name"),
    "an annotation of ours": (
        {"podAnnotations": {"prometheus.io/port": "1"}}, "podAnnotations must not have names under gnnserve.dev/"
    ),
    "an affinity to no values": (
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "In"}]}
        ]}}}},
        "values must be given, but for operators Exists and DoesNotExist",
    ),
    "an affinity to what is no number": (
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["many"]}]}
        ]}}}},
        "values must be one integer with operators Gt and Lt",
    ),
    "an affinity to pods without values": (
        {"affinity": {"podAffinity": {REQUIRED: [
            {"topologyKey": "a", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "NotIn"}]}}
        ]}}},
        "values must be given with operators In and NotIn, and only there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("part", ["worker", "generation"])
@pytest.mark.parametrize("case", PODS)
def test_pods_that_kubernetes_would_refuse_are_refused_with_the_manifest(case: str, part: str, api: Api) -> None:
    settings, said = PODS[case]
    code, _, message = refusal(applied(api, "pods", **{part: settings}))
    assert code == 422
    assert f"spec.{part}" in message
    assert said in message


TAKEN = {
    "as-much-as-the-limit": resources({"cpu": "2", "memory": "4Gi"}, {"cpu": 2, "memory": "4Gi"}),
    "a-request-without-a-limit": resources({"cpu": 2}, {"memory": "4Gi"}),
    "resources-of-a-domain": resources({}, {"nvidia.com/gpu": 1, "hugepages-2Mi": "4Mi"}),
    "tolerations": {"tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b"}]},
    "every-node": {"nodeSelector": {"a/b": "c"}, "runtimeClassName": "nvidia"},
    "described": {"podLabels": {"a": "b"}, "podAnnotations": {"a/b": "c d"}, "priorityClassName": "high"},
    "affine": {
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "a", "operator": "Gt", "values": ["-1"]},
                                {"key": "b", "operator": "Exists"},
                            ]
                        }
                    ]
                }
            },
            "podAntiAffinity": {REQUIRED: [{"topologyKey": "a", "labelSelector": {"matchLabels": {"a": "b"}}}]},
        }
    },
}


@pytest.mark.parametrize("name", TAKEN)
def test_pods_that_kubernetes_takes_are_taken(name: str, api: Api) -> None:
    made(applied(api, name, worker=TAKEN[name], generation=TAKEN[name]))


ZONES = [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]


def test_workers_are_spread_only_where_the_repository_may_be_mounted_on_several_nodes(api: Api) -> None:
    code, _, message = refusal(applied(api, "spread", worker={"topologySpreadConstraints": ZONES}))
    assert code == 422
    assert "worker.topologySpreadConstraints may be given with a repository that pods of several nodes may" in message
    shared = {"claim": {"accessMode": "ReadWriteMany"}}
    made(applied(api, "spread-shared", worker={"topologySpreadConstraints": ZONES}, repository=shared))
    made(applied(api, "spread-own", worker={"topologySpreadConstraints": ZONES}, repository={"claimName": "mine"}))


def test_annotations_of_the_service_are_the_users_but_for_ours(api: Api) -> None:
    made(applied(api, "exposed", endpoint={"service": {"type": "LoadBalancer", "annotations": {"a/b": "c"}}}))
    service = {"annotations": {"gnnserve.dev/adopt": "b"}}
    code, _, message = refusal(applied(api, "exposed", endpoint={"service": service}))
    assert (code, "annotations must not have names under gnnserve.dev/" in message) == (422, True)


TABLES = {"nodes": {"uri": "nodes.csv", "label": "kind"}, "edges": {"uri": "file:///data/edges.csv"}}
CHECKPOINT = {"checkpoint": {"uri": "model.safetensors"}}
NEEDS_A_VOLUME = "graph.volume must be given where a path is relative"
PATHS: dict[str, tuple[dict[str, Any], str | None]] = {
    "a-relative-table": ({"graph": {"source": {"csv": TABLES}}}, NEEDS_A_VOLUME),
    "relative-weights": ({"model": CHECKPOINT}, NEEDS_A_VOLUME),
    "a-relative-variant": ({"variants": {"given": [{**CHECKPOINT, "columns": [0]}]}}, NEEDS_A_VOLUME),
    "a-relative-mirror": ({"graph": {"source": {"pyg": {"name": "Cora", "mirror": "cora"}}}}, NEEDS_A_VOLUME),
    "a-mirror-on-the-web": ({"graph": {"source": {"pyg": {"name": "Cora", "mirror": "https://mirror/cora"}}}}, None),
    "a-table-on-the-volume": ({"graph": {"source": {"csv": TABLES}, "volume": {"claimName": "a"}}}, None),
    "an-absolute-path": ({"graph": {"source": {"npz": {"uri": "/data/a.npz"}}}}, None),
    "a-home": (
        {"graph": {"source": {"npz": {"uri": "~/a.npz"}}, "volume": {"claimName": "a"}}},
        "must be without ~ and, where it is relative, without .. in a cluster",
    ),
    "a-path-out-of-the-volume": (
        {"graph": {"source": {"npz": {"uri": "a/../../b.npz"}}, "volume": {"claimName": "a"}}},
        "must be without ~ and, where it is relative, without .. in a cluster",
    ),
}


@pytest.mark.parametrize("case", PATHS)
def test_a_relative_path_is_on_the_volume_of_the_data_or_refused_in_a_sentence(case: str, api: Api) -> None:
    spec, said = PATHS[case]
    answer = applied(api, case, **spec)
    if said is None:
        made(answer)
    else:
        code, _, message = refusal(answer)
        assert code == 422
        assert said in message


SQLITE: dict[str, Any] = {"log": {"sqlite": {}}}
POSTGRES: dict[str, Any] = {"log": {"postgres": {"secretName": "log"}}}
UPDATES = {
    "no-log": ({"updates": {"log": {}}}, "exactly one of sqlite and postgres must be set"),
    "several-workers-with-sqlite": (
        {"updates": SQLITE, "worker": {"replicas": 2}}, "worker.replicas must be at most 1 with updates.log.sqlite",
    ),
    "less-memory-than-changes": (
        {"updates": POSTGRES, "worker": {"resources": {"limits": {"memory": "2Gi"}}}},
        "updates.maxDelta must be less than worker.resources.limits.memory",
    ),
    "the-secret-of-tokens": (
        {"updates": POSTGRES, "endpoint": {"tokens": {"secretName": "log"}}},
        "updates.log.postgres must name a Secret of its own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UPDATES)
def test_what_does_not_go_with_updates_is_refused_in_a_sentence(case: str, api: Api) -> None:
    spec, said = UPDATES[case]
    code, _, message = refusal(applied(api, case, **spec))
    assert code == 422
    assert said in message


def test_updates_are_stored_as_they_are_written(api: Api) -> None:
    """An object without fields is one that is there."""
    stored = made(applied(api, "changing", updates=SQLITE, worker={"resources": {"limits": {"memory": "4Gi"}}}))
    compaction = {"deltaPercent": 50, "changes": 10_000_000, "retrain": False}
    assert stored["spec"]["updates"] == {**SQLITE, "maxDelta": "2Gi", "compaction": compaction}
    code, _, message = refusal(applied(api, "changing", updates=SQLITE, worker={"replicas": 3}))
    assert (code, "several workers share a log in PostgreSQL" in message) == (422, True)
    made(applied(api, "changing", updates=POSTGRES, worker={"replicas": 3}))


def test_a_service_with_sqlite_cannot_be_scaled_out(api: Api) -> None:
    """Neither by `kubectl scale` nor by an autoscaler."""
    made(applied(api, "scaled", updates=SQLITE))
    code, _, message = refusal(api.merge("GNNService", "scaled", {"spec": {"replicas": 2}}, subresource="scale"))
    assert (code, "several workers share a log in PostgreSQL" in message) == (422, True)
    made(api.merge("GNNService", "scaled", {"spec": {"replicas": 0}}, subresource="scale"))


def test_a_deployment_changes_its_strategy_with_the_volume_of_its_log(api: Api) -> None:
    """What the strategy of before declared is no longer there, which the API server would refuse beside the other."""
    for number in range(4):
        repository = {"claim": {"accessMode": "ReadWriteMany"}}
        spec = {"repository": repository, **({"updates": SQLITE} if number % 2 else {})}
        service = make_service(**spec)
        parent = Parent("digits", "default", "an-id")
        built = build_deployment(parent, service.spec, make_settings(), MountedClaim("digits-repository"))
        stored = made(api.apply(built, "operator", force=True))
        assert stored["spec"]["strategy"]["type"] == ("Recreate" if number % 2 else "RollingUpdate")
