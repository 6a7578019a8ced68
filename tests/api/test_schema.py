from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.support.kubernetes.structural import rules, validator, violations, with_defaults
from tests.support.schema_cases import BREAKS_RULE, CASCADE, GIVEN, MINIMAL, POOLED

from gnnserve_api.generated import schema
from gnnserve_api.spec.pool import GNNWorkerPoolSpec
from gnnserve_api.spec.service import GNNServiceSpec

CHECKOUT = Path(__file__).resolve().parents[2]
ROOT = schema.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_the_crd_in_the_tree_is_up_to_date() -> None:
    assert schema.main(["--check"]) == 0


def test_generating_twice_gives_the_same_text() -> None:
    assert schema.crd_yaml() == schema.crd_yaml()


def test_an_outdated_crd_is_reported_with_its_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, path = ["--folder", str(tmp_path)], tmp_path / schema.SERVICE.file_name
    assert schema.main(folder) == 0
    assert schema.main([*folder, "--check"]) == 0
    path.write_text(path.read_text().replace("default: 128", "default: 127"))
    assert schema.main([*folder, "--check"]) == 1
    said = capsys.readouterr().err
    assert "gnnservices.yaml differs from the types; run `make generate`" in said
    assert "default: 127" in said
    assert "default: 128" in said


def test_a_missing_crd_is_out_of_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema.main(["--folder", str(tmp_path), "--check"]) == 1
    assert "more lines" in capsys.readouterr().err


def test_the_schema_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert schema.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == schema.spec_schema()


def test_the_crd_names_what_people_type() -> None:
    crd = yaml.safe_load((CHECKOUT / "crds" / schema.SERVICE.file_name).read_text())
    names = crd["spec"]["names"]
    assert crd["metadata"]["name"] == f"{names['plural']}.{crd['spec']['group']}" == "gnnservices.gnnserve.dev"
    assert (names["kind"], names["shortNames"], names["categories"]) == ("GNNService", ["gnns"], ["gnn"])
    assert [v["name"] for v in crd["spec"]["versions"] if v["served"] and v["storage"]] == ["v1alpha1"]


def test_kubectl_shows_whether_it_answers_and_where() -> None:
    columns = {column["name"]: column for column in schema.crd()["spec"]["versions"][0]["additionalPrinterColumns"]}
    assert list(columns)[:3] == ["Ready", "Available", "Reason"]
    assert columns["URL"] == {"name": "URL", "type": "string", "jsonPath": ".status.endpoint", "priority": 1}


def test_the_schema_is_structural() -> None:
    assert list(violations(ROOT)) == []


def test_the_crd_of_pools_is_structural_and_names_what_people_type() -> None:
    crd = schema.crd(schema.POOL)
    version = crd["spec"]["versions"][0]
    assert list(violations(version["schema"]["openAPIV3Schema"])) == []
    assert crd["metadata"]["name"] == "gnnworkerpools.gnnserve.dev"
    assert crd["spec"]["names"]["shortNames"] == ["gnnp"]
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.replicas"
    assert [column["name"] for column in version["additionalPrinterColumns"]][:3] == ["Ready", "Available", "Reason"]


def test_a_pool_needs_no_spec_and_lends_its_pods() -> None:
    pool = GNNWorkerPoolSpec.model_validate({"replicas": 3, "image": "a:1", "resources": {"limits": {"memory": "1Gi"}}})
    spec = GNNServiceSpec.model_validate({**MINIMAL, "worker": {**POOLED, "share": 2, "batching": {"maxSeeds": 8}}})
    lent = pool.lend(spec, "shared-pool")
    assert (lent.worker.replicas, lent.worker.resources.limits) == (3, {"memory": "1Gi"})
    assert (lent.worker.share, lent.worker.batching.max_seeds) == (2, 8)
    assert (lent.image, lent.repository.claim_name) == ("a:1", "shared-pool")
    assert lent.recipe() == spec.recipe()


def test_a_pooled_service_names_each_field_that_is_the_pools() -> None:
    with pytest.raises(ValidationError, match="found replicas"):
        GNNServiceSpec.model_validate({**MINIMAL, "worker": {**POOLED, "replicas": 2}})
    with pytest.raises(ValidationError, match=r"found repository\.claimName"):
        GNNServiceSpec.model_validate({**MINIMAL, "worker": POOLED, "repository": {"claimName": "mine"}})
    with pytest.raises(ValidationError, match=r"compute on the CPU; .*found device, gpu"):
        GNNServiceSpec.model_validate({**MINIMAL, "worker": {**POOLED, "device": "GPU", "gpu": {}}})


@pytest.mark.parametrize("field", ["requests", "limits"])
def test_a_pool_takes_no_device_that_its_workers_would_leave_idle(field: str) -> None:
    plain = {"cpu": 2, "memory": "4Gi", "hugepages-2Mi": "4Mi"}
    GNNWorkerPoolSpec.model_validate({"resources": {field: plain}})
    with pytest.raises(ValidationError, match=rf"spec\.worker\.gpu .*found resources\.{field}\.nvidia\.com/gpu"):
        GNNWorkerPoolSpec.model_validate({"resources": {field: {**plain, "nvidia.com/gpu": 1}}})


def test_metadata_is_left_to_kubernetes() -> None:
    assert ROOT["properties"]["metadata"] == {"type": "object"}
    assert ROOT["required"] == ["spec"]


@pytest.mark.parametrize(
    "path",
    # The others are of KServe's and Kubernetes' own kinds.
    sorted(
        path
        for path in (CHECKOUT / "examples").rglob("*.yaml")
        if "\napiVersion: gnnserve.dev/v1alpha1" in f"\n{path.read_text()}"
    ),
    ids=lambda path: path.name,
)
def test_examples_fit_the_schema(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    resource = next(found for found in schema.RESOURCES if found.kind == content["kind"])
    root = schema.crd(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    validator(root).validate(content)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="no graph"),
        pytest.param({**MINIMAL, "model": {"hidden": "12"}}, id="a number in quotes"),
        pytest.param({**MINIMAL, "model": {"training": {"learningRate": 0}}}, id="an exclusive bound"),
        pytest.param({**MINIMAL, "model": {"fanouts": []}}, id="an empty list"),
        pytest.param({**MINIMAL, "variants": {"pruning": {"method": "lasso"}}}, id="no member of an enum"),
        pytest.param({**MINIMAL, "variants": {"storage": []}}, id="no storage"),
        pytest.param({**MINIMAL, "variants": {"storage": ["float64"]}}, id="an unknown storage"),
        pytest.param({**MINIMAL, "variants": {"projection": True}}, id="projection as a boolean"),
        pytest.param({**MINIMAL, "worker": {"device": "Cuda"}}, id="an unknown device"),
        pytest.param({**MINIMAL, "worker": {"cache": {"policy": "LRU"}}}, id="an unknown policy"),
        pytest.param({**MINIMAL, "worker": {"gpuMemory": 4}}, id="memory as a number"),
        pytest.param({**MINIMAL, "updates": {}}, id="updates without a log"),
        pytest.param({**MINIMAL, "updates": {"log": {"postgres": {}}}}, id="a database without a Secret"),
        pytest.param({**MINIMAL, "updates": {"log": {"sqlite": {}}, "maxDelta": 4}}, id="a delta as a number"),
        pytest.param({**MINIMAL, "worker": {"gpu": {"count": 0}}}, id="no GPU at all"),
        pytest.param({"graph": {"source": {"npz": {"uri": f"file:///{'a' * 2048}"}}}}, id="a text that is too long"),
    ],
)
def test_the_schema_refuses_what_pydantic_refuses(spec: dict) -> None:
    assert not validator(ROOT).is_valid({"spec": spec})
    with pytest.raises(ValidationError):
        GNNServiceSpec.model_validate_json(json.dumps(spec), strict=True)


@pytest.mark.parametrize(
    "url", ["http://prometheus.monitoring.svc:9090", "https://metrics.example/prometheus", "http://[fd00::1]:9090"]
)
def test_addresses_of_a_prometheus(url: str) -> None:
    spec = {**MINIMAL, "routing": {"prometheus": {"url": url}}}
    assert GNNServiceSpec.model_validate(spec).routing.prometheus.url == url


@pytest.mark.parametrize(
    "url", ["prometheus:9090", "http://a b", "http://user:secret@host", "http://host?query=up", "ftp://host"]
)
def test_what_is_no_address_of_a_prometheus(url: str) -> None:
    with pytest.raises(ValidationError, match=r"routing\.prometheus\.url"):
        GNNServiceSpec.model_validate({**MINIMAL, "routing": {"prometheus": {"url": url}}})


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(MINIMAL, id="everything left out"),
        pytest.param({**MINIMAL, "model": {"training": {"epochs": 2}}}, id="a section in part"),
        pytest.param({**MINIMAL, "model": {"training": {"epochs": "Auto"}}}, id="a word where a number may be"),
        pytest.param({**MINIMAL, "variants": {"pruning": {}}, "worker": {}}, id="empty sections"),
        pytest.param({**MINIMAL, "worker": {"gpu": {}, "gpuMemory": "4Gi"}}, id="workers with a GPU"),
        pytest.param({**MINIMAL, "updates": {"log": {"postgres": {"secretName": "log"}}}}, id="changes of the graph"),
    ],
)
def test_the_api_server_fills_in_what_pydantic_fills_in(spec: dict) -> None:
    filled = with_defaults({"spec": spec}, ROOT)["spec"]
    understood = GNNServiceSpec.model_validate(spec).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert filled == _without_empty_collections(understood)


def _without_empty_collections(node: dict) -> dict:
    """An empty list or map of the user's own keys means the same as none; sections stay."""
    pruned = {key: _without_empty_collections(v) if isinstance(v, dict) else v for key, v in node.items()}
    return {
        key: v
        for key, v in pruned.items()
        if v != [] and (v != {} or key in {"endpoint", "objective", "prometheus", "resources", "repository", "task"})
    }


@pytest.mark.parametrize(
    ("name", "others", "is_refused"),
    [
        ("mlp2", {"oneRow": [{"hops": 2}]}, True),
        ("stored7", {"stored": [1]}, True),
        ("channels3-x4", {"channels": [{"factor": 2}]}, True),
        ("channels-3", {"channels": [{"factor": 2}]}, False),
        ("mlp2", {"oneRow": []}, False),
        ("mlp-2", {"oneRow": [{"hops": 2}], "stored": [1]}, False),
    ],
)
def test_names_of_given_variants_are_not_as_those_of_others(
    name: str, others: dict[str, Any], is_refused: bool
) -> None:
    spec = {**MINIMAL, "variants": {"given": [{**GIVEN, "name": name}], **others}}
    if not is_refused:
        assert name in GNNServiceSpec.model_validate(spec).variants.listed_names()
        return
    with pytest.raises(ValidationError, match=f"must not be as those of oneRow, stored or channels, .*: {name}"):
        GNNServiceSpec.model_validate(spec)


def test_names_of_given_variants_are_not_as_those_of_cascades() -> None:
    given = {"given": [{**GIVEN, "name": "a-then-b-p5"}]}
    assert "a-then-b-p5" in GNNServiceSpec.model_validate({**MINIMAL, "variants": given}).variants.listed_names()
    with pytest.raises(ValidationError, match="which those of cascades have, where there are any: a-then-b-p5"):
        GNNServiceSpec.model_validate({**MINIMAL, "variants": {**given, "cascades": [CASCADE]}})


def test_every_rule_of_the_api_server_has_a_twin_in_pydantic() -> None:
    # A rule over the old object needs one; metadata.name has a pattern of its own (test_manifest.py).
    # So have texts: `self.matches` is the pattern's twin.
    timeless = [rule for rule in rules(ROOT) if "oldSelf" not in rule["rule"] and "matches(" not in rule["rule"]]
    assert {rule["message"] for rule in timeless} == set(BREAKS_RULE)
    for spec in BREAKS_RULE.values():
        with pytest.raises(ValidationError, match=r"must be|must name|must not|may be|would sample"):
            GNNServiceSpec.model_validate(spec)


@pytest.mark.parametrize("epochs", [0, 10_001, -1, "auto", "30", "", True, 1.5, [30]])
def test_what_is_no_number_of_epochs(epochs: object) -> None:
    """What the API server's rule says of integers and texts is tried on a real one (tests/cluster)."""
    with pytest.raises(ValidationError, match="must be Auto, or a whole number from 1 to 10000"):
        GNNServiceSpec.model_validate({**MINIMAL, "model": {"training": {"epochs": epochs}}})


def test_kubectl_explain_tells_what_a_value_does() -> None:
    method = ROOT["properties"]["spec"]["properties"]["variants"]["properties"]["pruning"]["properties"]["method"]
    assert "\n- Random: A seeded permutation: the baseline.\n" in method["description"]


def test_every_field_is_described() -> None:
    def undescribed(node: dict, path: str) -> list[str]:
        return [
            missing
            for name, child in node.get("properties", {}).items()
            for missing in [
                *([] if "description" in child else [f"{path}.{name}"]),
                *undescribed(child, f"{path}.{name}"),
            ]
        ]

    assert undescribed(ROOT["properties"]["spec"], "spec") == []
