"""What the API server says to a person whose manifest is wrong: a sentence that names the field."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from tests.cluster.harness.client import Cluster
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.installation import Installation, example

pytestmark = pytest.mark.usefixtures("operator")

MANIFEST = {
    "apiVersion": "gnnserve.dev/v1alpha1",
    "kind": "GNNService",
    "metadata": {"name": "wrong"},
    # Suspended: these tests are about the API server's word, not about what follows.
    "spec": {"graph": {"source": {"builtin": "Digits"}}, "suspend": True},
}

REFUSED = {
    "a name that no Service can have": (
        {"metadata": {"name": "1st"}},
        "metadata.name must be at most 63 lower-case letters, digits and '-', a letter first",
    ),
    "a name of 64 characters": ({"metadata": {"name": "a" * 64}}, "metadata.name must be at most 63"),
    "a name with a dot": ({"metadata": {"name": "a.b"}}, "metadata.name must be at most 63"),
    "no spec": ({"spec": None}, "spec: Required value"),
    "no graph": ({"spec": {"graph": None}}, "spec.graph: Required value"),
    "no source": (
        {"spec": {"graph": {"source": {"builtin": None}}}},
        "exactly one of builtin, npz, ogb, pyg, parquet, csv and typed must be set",
    ),
    "two sources": (
        {"spec": {"graph": {"source": {"npz": {"uri": "file:///a.npz"}}}}},
        "spec.graph.source: Invalid value: exactly one of builtin, npz, ogb, pyg, parquet, csv and typed must be set",
    ),
    "an unknown graph": (
        {"spec": {"graph": {"source": {"builtin": "MNIST"}}}},
        'spec.graph.source.builtin: Unsupported value: "MNIST": supported values: "Digits"',
    ),
    "a scheme that nothing reads": (
        {"spec": {"graph": {"source": {"builtin": None, "npz": {"uri": "s3://data/a.npz"}}}}},
        'uri: Invalid value: "s3://data/a.npz": must be a path, as in data/graph.npz',
    ),
    "a checksum that is none": (
        {"spec": {"graph": {"source": {"builtin": None, "npz": {"uri": "file:///a.npz", "sha256": "x" * 64}}}}},
        "must be 64 hexadecimal digits in lower case",
    ),
    "a mount path that is relative": (
        {"spec": {"graph": {"volume": {"claimName": "a", "mountPath": "data"}}}},
        "spec.graph.volume.mountPath: Invalid value: \"data\": must be an absolute path without ':', as in /data",
    ),
    "a claim with a name that no object has": (
        {"spec": {"graph": {"volume": {"claimName": "My Graphs"}}}},
        "must be the name of a Kubernetes object",
    ),
    "a misspelt field": ({"spec": {"modle": {}}}, 'unknown field "spec.modle"'),
    "an unknown scope": (
        {"spec": {"model": {"training": {"scope": "All"}}}},
        'spec.model.training.scope: Unsupported value: "All": supported values: "Inductive", "Transductive"',
    ),
    "a number in quotes": ({"spec": {"model": {"hidden": "128"}}}, "spec.model.hidden in body must be of type integer"),
    "mixed fan-outs": ({"spec": {"model": {"fanouts": [-1, 5]}}}, "fanouts must be all positive, or all -1"),
    "a width inside GraphSAGE": (
        {"spec": {"model": {"mlpHidden": 64}}},
        "mlpHidden may be given with architecture GIN",
    ),
    "fan-outs without end": ({"spec": {"model": {"fanouts": [1000, 1000]}}}, "over 1,000,000 nodes for one seed"),
    "fan-outs that are not smaller": (
        {"spec": {"variants": {"fanouts": [[15, 11]]}}},
        "each of variants.fanouts must be smaller than model.fanouts",
    ),
    "too many fan-outs": (
        {"spec": {"variants": {"fanouts": [[fanout, 5] for fanout in range(1, 9)]}}},
        "must be at most 36 variants",
    ),
    "no factors": (
        {"spec": {"variants": {"pruning": {"factors": []}}}},
        "pruning.factors may be empty beside given, stored or channels only",
    ),
    "a factor twice": ({"spec": {"variants": {"pruning": {"factors": [2, 2]}}}}, "factors[1]: Duplicate value: 2"),
    "a latency of nothing": (
        {"spec": {"objective": {"latencyMs": 0}}},
        "spec.objective.latencyMs in body should be greater than 0",
    ),
    "a tolerance above everything": (
        {"spec": {"objective": {"accuracyTolerancePermille": 1001}}},
        "accuracyTolerancePermille in body should be less than or equal to 1000",
    ),
    "a queue smaller than a batch": (
        {"spec": {"worker": {"batching": {"maxSeeds": 10, "maxQueuedSeeds": 5}}}},
        "maxQueuedSeeds must be at least maxSeeds",
    ),
    "fewer than no replicas": ({"spec": {"worker": {"replicas": -1}}}, "greater than or equal to 0"),
    "a quantity in words": (
        {"spec": {"worker": {"resources": {"limits": {"cpu": "two"}}}}},
        'must be a quantity: a whole number, or a string as in "500m" or "4Gi"',
    ),
    "half a GPU": (
        {"spec": {"generation": {"gpu": {"count": 0}}}},
        "gpu.count in body should be greater than or equal to 1",
    ),
    "a GPU without a domain": (
        {"spec": {"generation": {"gpu": {"resourceName": "gpu"}}}},
        "must be a name with a domain, as in nvidia.com/gpu",
    ),
    "memory of a GPU in a unit that is none": (
        {"spec": {"worker": {"gpuMemory": "1Q"}}},
        "must be a size, as in 500Mi, 40Gi or 1Ti",
    ),
    "workers that must have a GPU and ask for none": (
        {"spec": {"worker": {"device": "GPU"}}},
        "gpu must be given with device GPU",
    ),
    "workers that ask for a GPU and leave it idle": (
        {"spec": {"worker": {"device": "CPU", "gpu": {}}}},
        "gpu must not be given with device CPU",
    ),
    "a claim of one's own and one to be made": (
        {"spec": {"repository": {"claimName": "mine", "claim": {}}}},
        "at most one of claimName and claim may be set",
    ),
    "a size without a unit": (
        {"spec": {"repository": {"claim": {"storage": "10"}}}},
        "must be a size, as in 500Mi, 10Gi or 1Ti",
    ),
    "an image with a space": ({"spec": {"image": "gnnserve worker"}}, "must be a reference without spaces"),
}


@pytest.mark.parametrize("case", REFUSED, ids=REFUSED)
def test_a_wrong_manifest_is_refused_with_a_sentence(cluster: Cluster, case: str) -> None:
    changes, said = REFUSED[case]
    with pytest.raises(HarnessError) as refused:
        cluster.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(_merged(MANIFEST, changes)))
    assert said in str(refused.value)


def test_the_example_is_taken_as_it_is(cluster: Cluster) -> None:
    cluster.kubectl("create", "--dry-run=server", f"--filename={example('digits')}")
    assert yaml.safe_load(example("digits").read_text())["spec"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        pytest.param("gnns.spec.worker.replicas", "Number of worker pods. Default: `1`.", id="a field and its default"),
        pytest.param("gnns.spec.model.fanouts", "Default: `[25, 10]`.", id="the default of a list"),
        pytest.param("gnns.spec.routing.prometheus", "Prometheus that measures the load", id="a section"),
        pytest.param("gnnp.spec", "Number of worker pods, each of which", id="all fields of a pool"),
        pytest.param("gnns.spec.variants.pruning.method", "- Lasso: By coefficients", id="what each value does"),
        pytest.param("gnns.status.conditions", "Ready, Available, Reconciling, Stalled", id="the status"),
    ],
)
def test_kubectl_explains_it(cluster: Cluster, asked: str, told: str) -> None:
    assert told in " ".join(cluster.kubectl("explain", asked).split())


def test_it_is_found_by_its_short_name_and_its_category(cluster: Cluster, operator: Installation) -> None:
    resources = cluster.kubectl("api-resources", "--categories=gnn", "--output=wide")
    assert "gnnservices" in resources
    assert "gnns" in resources
    assert operator.namespace.kubectl("get", "gnn", "--ignore-not-found") == ""


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """None removes a field."""
    merged = copy.deepcopy(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = value
    return merged
