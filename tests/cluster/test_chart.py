"""The chart as helm renders it; no cluster is needed. What a cluster makes of it is in the other files here."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.kubernetes.helm import (
    CHART,
    ROOT,
    HelmError,
    Manifest,
    documented_values,
    load_all,
    render,
    render_notes,
    run_helm,
    values_table,
)
from tests.support.machine.fake_server import Asked, Told, fake_server
from tests.support.operator.rights import Right, needed_rights, rights_of
from tests.support.pages.pages import anchors, links

from gnnserve_api.spec.pods import QUANTITY, Resources
from gnnserve_operator.kinds import LEASE, RECONCILED
from gnnserve_operator.leadership import identity_of
from gnnserve_operator.settings import SETTINGS_VARIABLE, LeaderElection, NamespaceGrant, RunAs, Settings, load_settings

# The first test may have to wait until helm is compiled.
pytestmark = pytest.mark.timeout(2400)

LONGEST_RELEASE = "r" * 53
"""Helm takes no longer one."""
CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
VALUE_SETS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "two namespaces": {"watchNamespaces": ["a", "b"], "crds": {"enabled": False}},
    "one role for two namespaces": {"watchNamespaces": ["a", "b"], "rbac": {"bindings": "ClusterRole"}},
    "their owners bind": {"watchNamespaces": ["a", "b"], "rbac": {"bindings": "Owners"}},
    "OpenShift in a mesh": {"podSecurity": {"runAs": "Platform"}, "networkPolicy": {"meshPorts": [15008]}},
    "an existing account, no roles": {"serviceAccount": {"create": False, "name": "own"}, "rbac": {"create": False}},
    "no network policies": {"networkPolicy": {"enabled": False}},
    "another label of the namespace": {"prometheus": {"namespaceLabel": "kubernetes_namespace"}},
    "a subchart": {"global": {"anything": 1}, "enabled": True},
    "everything set": {
        "image": {"repository": "registry.example:5000/a/operator", "tag": "1.2", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "worker": {
            "image": {"repository": "b/worker", "digest": "sha256:" + "0" * 64, "pullPolicy": "Never"},
            "gpuImage": {"repository": "b/gpu", "tag": "2"},
            "extraVolumes": [{"name": "p", "emptyDir": {"sizeLimit": 1_073_741_824}}],
            "extraVolumeMounts": [{"name": "p", "mountPath": "/p", "readOnly": True}],
            "extraEnv": [{"name": "QUOTED", "value": "a: \"b\" 'c' {{ d }} #"}],
        },
        "replicas": 2,
        "leaderElection": {"leaseSeconds": 30, "renewDeadlineSeconds": 20, "retrySeconds": 2.5, "fencing": True},
        "clusterDomain": "cluster.example",
        "resyncSeconds": 3600,
        "concurrency": 256,
        "generation": {
            "image": {"repository": "b/generate", "digest": "sha256:" + "1" * 64},
            "maxConcurrentJobs": 0,
            "resources": {"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"memory": "8Gi"}},
        },
        "rollout": {"maxConcurrentServices": 9},
        "networkPolicy": {"apiServerPorts": [6443, 16443], "prometheusPorts": [19090], "postgresPorts": [15432]},
        "prometheus": {"url": "http://prometheus.monitoring:9090"},
        "logs": {"format": "Text", "level": "DEBUG"},
        "deletionGuard": {"enabled": True},
        "serviceAccount": {"name": "named", "annotations": {"a/b": "c"}},
        "resources": {"limits": {"memory": 536_870_912, "cpu": 1}},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "podAnnotations": {"e/f": "g", "checksum/settings": "not this one"},
        "podLabels": {"team": "a", "app.kubernetes.io/component": "other"},
        "metrics": {
            "podMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True, "labels": {"dashboards": "here"}, "annotations": {"grafana_folder": "GNN"}},
        },
    },
}

every_value_set = pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS.keys())


def of_kind(objects: list[Manifest], kind: str) -> list[Manifest]:
    return [found for found in objects if found["kind"] == kind]


def one(objects: list[Manifest], kind: str) -> Manifest:
    (found,) = of_kind(objects, kind)
    return found


def policy_named(objects: list[Manifest], ending: str) -> tuple[Manifest, Manifest]:
    """A ValidatingAdmissionPolicy by the end of its name, and its binding."""
    (policy,) = [
        found for found in of_kind(objects, "ValidatingAdmissionPolicy") if found["metadata"]["name"].endswith(ending)
    ]
    name = policy["metadata"]["name"]
    (binding,) = [
        found for found in of_kind(objects, "ValidatingAdmissionPolicyBinding") if found["metadata"]["name"] == name
    ]
    assert binding["spec"]["policyName"] == name
    return policy, binding


def operator_pod(objects: list[Manifest]) -> Manifest:
    return one(objects, "Deployment")["spec"]["template"]["spec"]


def rules_of(role: Manifest) -> list[Right]:
    return rights_of(role["rules"])


# --- the chart as a whole


@every_value_set
def test_helm_finds_nothing_to_complain_of(values: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    said = run_helm("lint", "--strict", str(CHART), "--values", str(file))
    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert "[WARNING]" not in said


def test_it_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


@pytest.mark.parametrize(
    ("cluster", "accepted"),
    [("v1.29.9", False), ("v1.30.0", True), ("v1.30.4-gke.100", True), ("v1.36.3", True)],
    ids=["too old", "the oldest", "a vendor's suffix", "the one of the tests"],
)
def test_it_refuses_clusters_that_lack_what_the_pods_need(cluster: str, accepted: bool) -> None:
    if accepted:
        assert render(arguments=("--kube-version", cluster))
    else:
        with pytest.raises(HelmError, match=r"requires kubeVersion: >=1\.30"):
            render(arguments=("--kube-version", cluster))


def test_a_package_holds_what_is_needed_and_nothing_else(tmp_path: Path) -> None:
    run_helm("package", str(CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.iterdir()
    packed = load_all(run_helm("template", "gnnserve", str(package), "--namespace", "gnnserve-system"))
    assert render() == packed


@every_value_set
def test_everything_is_labelled_as_part_of_the_release(values: dict[str, Any]) -> None:
    for found in render(values, release="mine"):
        labels = found["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "gnnserve", found["kind"]
        assert labels["app.kubernetes.io/instance"] == "mine", found["kind"]
        assert labels["app.kubernetes.io/managed-by"] == "Helm", found["kind"]


@every_value_set
def test_everything_with_a_namespace_says_which(values: dict[str, Any]) -> None:
    allowed = {"gnnserve-system", *values.get("watchNamespaces", [])}
    for found in render(values):
        namespace = found["metadata"].get("namespace")
        assert (namespace is None) if found["kind"] in CLUSTER_WIDE else (namespace in allowed), found["kind"]


def test_names_fit_with_the_longest_release() -> None:
    for found in render(VALUE_SETS["as it comes"], release=LONGEST_RELEASE):
        # Roles may be longer, and Kubernetes has names of its own for pods behind a Deployment.
        if found["kind"] not in {*CLUSTER_WIDE, "Role", "RoleBinding"}:
            assert len(found["metadata"]["name"]) <= 63, found["metadata"]["name"]
        for value in found["metadata"]["labels"].values():
            assert len(value) <= 63


def test_names_do_not_say_gnnserve_twice() -> None:
    assert one(render(release="gnnserve"), "Deployment")["metadata"]["name"] == "gnnserve"
    assert one(render(release="my-gnnserve"), "Deployment")["metadata"]["name"] == "my-gnnserve"
    assert one(render(release="mine"), "Deployment")["metadata"]["name"] == "mine-gnnserve"


@pytest.mark.parametrize(
    "values", [{"crds": {"enabled": False}}, VALUE_SETS["two namespaces"]], ids=["cluster-wide", "in namespaces"]
)
def test_releases_of_one_name_in_two_namespaces_do_not_collide(values: dict[str, Any]) -> None:
    def places(namespace: str) -> set[tuple[str, str | None, str]]:
        return {
            (found["kind"], found["metadata"].get("namespace"), found["metadata"]["name"])
            for found in render(values, namespace=namespace)
        }

    # "x-gnnserve" in "a" and "gnnserve" in "a-x" would be one name, were they joined by "-".
    assert not places("a") & places("a-x")
    assert not places("a") & {
        (found["kind"], found["metadata"].get("namespace"), found["metadata"]["name"])
        for found in render(values, release="x-gnnserve", namespace="a")
    }


def test_selectors_meet_the_operator_only() -> None:
    objects = render(VALUE_SETS["everything set"])
    deployment = one(objects, "Deployment")
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        one(objects, "Service")["spec"]["selector"],
        one(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        one(objects, "PodMonitor")["spec"]["selector"]["matchLabels"],
    ]
    pod = deployment["spec"]["template"]["metadata"]["labels"]
    test_pod = one(objects, "Pod")["metadata"]["labels"]
    for selector in selectors:
        assert selector == selectors[0]
        assert selector.items() <= pod.items()
        assert not selector.items() <= test_pod.items()
    # The operator watches what has that label.
    assert pod["app.kubernetes.io/managed-by"] != "gnnserve-operator"


# --- rights


def test_cluster_wide_the_operator_may_do_what_it_calls_and_nothing_else() -> None:
    objects = render()
    binding = one(objects, "ClusterRoleBinding")
    (role,) = (r for r in of_kind(objects, "ClusterRole") if r["metadata"]["name"] == binding["roleRef"]["name"])
    rights = rules_of(role)
    assert len(rights) == len(set(rights))
    assert set(rights) == needed_rights()
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "gnnserve", "namespace": "gnnserve-system"}]
    assert [role["metadata"]["name"] for role in of_kind(objects, "Role")] == ["gnnserve-system:gnnserve:lease"]


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["a", "gnnserve-system"]}], ids=["cluster-wide", "here"])
def test_where_it_is_installed_it_may_hold_its_lease(values: dict[str, Any]) -> None:
    objects = render(values)
    (role,) = (found for found in of_kind(objects, "Role") if found["metadata"]["name"].endswith(":lease"))
    (binding,) = (found for found in of_kind(objects, "RoleBinding") if found["metadata"]["name"].endswith(":lease"))
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "gnnserve-system"
    leases = {(LEASE.group, LEASE.plural, verb) for verb in ("create", "get", "update")}
    assert set(rules_of(role)) == leases | {("", "pods", "get")}
    rules = [rule for rule in role["rules"] if rule["resources"] == [LEASE.plural]]
    names = {verb: rule.get("resourceNames") for rule in rules for verb in rule["verbs"]}
    assert names == {"create": None, "get": ["gnnserve"], "update": ["gnnserve"]}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "gnnserve", "namespace": "gnnserve-system"}]


def test_in_namespaces_it_may_do_the_same_there_and_nothing_elsewhere() -> None:
    objects = render({"watchNamespaces": ["a", "b"]})
    assert not of_kind(objects, "ClusterRole") + of_kind(objects, "ClusterRoleBinding")
    roles, bindings = (
        [found for found in of_kind(objects, kind) if not found["metadata"]["name"].endswith(":lease")]
        for kind in ("Role", "RoleBinding")
    )
    assert [role["metadata"]["namespace"] for role in roles] == ["a", "b"]
    assert [binding["metadata"]["namespace"] for binding in bindings] == ["a", "b"]
    for role, binding in zip(roles, bindings, strict=True):
        assert set(rules_of(role)) == needed_rights()
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "gnnserve", "namespace": "gnnserve-system"}]


def test_one_role_is_granted_in_each_namespace_and_nothing_elsewhere() -> None:
    objects = render({"watchNamespaces": ["a", "b"], "rbac": {"bindings": "ClusterRole"}})
    assert not of_kind(objects, "ClusterRoleBinding")
    (role,) = (r for r in of_kind(objects, "ClusterRole") if r["metadata"]["name"] == "gnnserve-system:gnnserve")
    assert set(rules_of(role)) == needed_rights()
    assert [found["metadata"]["name"] for found in of_kind(objects, "Role")] == ["gnnserve-system:gnnserve:lease"]
    bindings = [b for b in of_kind(objects, "RoleBinding") if not b["metadata"]["name"].endswith(":lease")]
    assert [binding["metadata"]["namespace"] for binding in bindings] == ["a", "b"]
    for binding in bindings:
        assert binding["roleRef"] == {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gnnserve-system:gnnserve"
        }  # fmt: skip
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "gnnserve", "namespace": "gnnserve-system"}]


def test_the_kind_of_role_can_be_changed_by_an_upgrade() -> None:
    """The API server refuses a RoleBinding that refers to another role than before."""

    def bindings(kind: str) -> dict[tuple[str, str], Manifest]:
        found = of_kind(render({"watchNamespaces": ["a"], "rbac": {"bindings": kind}}), "RoleBinding")
        return {(b["metadata"]["namespace"], b["metadata"]["name"]): b["roleRef"] for b in found}

    before, after = bindings("Role"), bindings("ClusterRole")
    assert {name: after[name] for name in after if name in before} == {n: before[n] for n in before if n in after}
    assert {("a", "gnnserve-system:gnnserve"), ("a", "gnnserve-system:gnnserve:shared")} <= {*before, *after}


def test_where_owners_bind_the_role_the_chart_has_no_right_in_their_namespaces_and_they_may_bind_it() -> None:
    values = {"watchNamespaces": ["a", "b"], "rbac": {"bindings": "Owners"}}
    objects = render(values)
    assert {found["metadata"].get("namespace") for found in objects} <= {None, "gnnserve-system"}
    assert not of_kind(objects, "ClusterRoleBinding")
    (binds,) = (r for r in of_kind(objects, "ClusterRole") if r["metadata"]["name"].endswith(":bind"))
    assert binds["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"] == "true"
    assert binds["rules"] == [
        {
            "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"],
            "resourceNames": ["gnnserve-system:gnnserve"], "verbs": ["bind"],
        }
    ]  # fmt: skip
    notes = render_notes(values, release="mine", namespace="there")
    assert "kubectl create rolebinding mine-gnnserve --namespace NAMESPACE" in notes
    assert "--clusterrole=there:mine-gnnserve --serviceaccount=there:mine-gnnserve" in notes


@pytest.mark.parametrize("bindings", ["ClusterRole", "Owners"])
def test_bindings_in_namespaces_need_namespaces(bindings: str) -> None:
    with pytest.raises(HelmError, match=f"rbac.bindings is {bindings}, which is about watchNamespaces, and that is em"):
        render({"rbac": {"bindings": bindings}})


@every_value_set
def test_no_right_is_by_wildcard_or_on_secrets(values: dict[str, Any]) -> None:
    objects = render(values)
    for role in of_kind(objects, "ClusterRole") + of_kind(objects, "Role"):
        for right in rules_of(role):
            assert "*" not in "".join(right), right
            assert "secrets" not in right[1], right


def test_the_operator_holds_what_it_grants_to_workers() -> None:
    assert {("", "configmaps", verb) for verb in ("get", "list", "watch")} <= needed_rights()


def test_people_who_edit_a_namespace_may_edit_its_services() -> None:
    def aggregated(objects: list[Manifest]) -> dict[str, set[str]]:
        return {
            label.rpartition("-")[2]: {resource for _, resource, _ in rules_of(role)}
            for role in of_kind(objects, "ClusterRole")
            for label in role["metadata"]["labels"]
            if label.startswith("rbac.authorization.k8s.io/aggregate-to-")
        }

    assert aggregated(render()).keys() == {"view", "edit", "admin"}
    assert all(
        resource.startswith(("gnnservices", "gnnworkerpools"))
        for resources in aggregated(render()).values()
        for resource in resources
    )
    assert not aggregated(render({"rbac": {"aggregateClusterRoles": False}}))
    assert not aggregated(render({"watchNamespaces": ["a"]}))
    assert aggregated(render({"watchNamespaces": ["a"], "rbac": {"bindings": "ClusterRole"}})).keys() == {
        "view", "edit", "admin"
    }  # fmt: skip


def test_no_roles_where_they_are_made_by_somebody_else() -> None:
    kinds = {found["kind"] for found in render({"rbac": {"create": False}})}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}


def test_an_existing_account_is_used_everywhere() -> None:
    objects = render({"serviceAccount": {"create": False, "name": "own"}})
    assert not of_kind(objects, "ServiceAccount")
    assert operator_pod(objects)["serviceAccountName"] == "own"
    assert one(objects, "ClusterRoleBinding")["subjects"][0]["name"] == "own"


def test_an_existing_account_needs_a_name() -> None:
    with pytest.raises(HelmError, match=r"serviceAccount\.create is false, so serviceAccount\.name must name"):
        render({"serviceAccount": {"create": False}})


def test_the_fence_is_around_everything_that_the_operator_applies() -> None:
    objects = render({"leaderElection": {"fencing": True}, "serviceAccount": {"name": "own"}})
    policy, binding = policy_named(objects, ".gnnserve")
    fenced = {
        (group, resource)
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    applied = {(group, resource) for group, resource, verb in needed_rights() if verb == "patch"}
    assert fenced >= applied - {(kind.group, f"{kind.plural}/status") for kind in RECONCILED}
    (condition,) = policy["spec"]["matchConditions"]
    assert '"system:serviceaccount:gnnserve-system:own"' in condition["expression"]
    election = settings_map({})["data"]["settings.yaml"]
    assert binding["spec"]["paramRef"]["name"] == yaml.safe_load(election)["leaderElection"]["leaseName"]


def test_there_is_no_fence_where_nothing_is_cluster_wide() -> None:
    assert not of_kind(render({"deletionGuard": {"enabled": False}}), "ValidatingAdmissionPolicy")
    with pytest.raises(HelmError, match="which watchNamespaces excludes"):
        render({"watchNamespaces": ["a"], "leaderElection": {"fencing": True}})


def test_a_guard_is_around_pools_where_cluster_wide_objects_are_made() -> None:
    policy, binding = policy_named(render(), ".gnnserve.deletion-guard")
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["apiGroups"], rule["resources"]) == (
        ["DELETE"],
        ["gnnserve.dev"],
        ["gnnworkerpools"],
    )
    assert binding["spec"]["validationActions"] == ["Deny"]
    assert not of_kind(render({"watchNamespaces": ["a"]}), "ValidatingAdmissionPolicy")


# --- the CustomResourceDefinition


def source_crds() -> list[Manifest]:
    paths = sorted((ROOT / "crds").glob("*.yaml"))
    return [found for path in paths for found in load_all(path.read_text())]


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "not kept"])
def test_the_crds_are_the_generated_ones(keep: bool) -> None:
    rendered = of_kind(render({"crds": {"keep": keep}}), "CustomResourceDefinition")
    assert len(rendered) == 2
    for found, source in zip(rendered, source_crds(), strict=True):
        made, generated = dict(found), dict(source)
        metadata = made.pop("metadata")
        assert metadata["name"] == generated.pop("metadata")["name"]
        assert metadata.get("annotations") == ({"helm.sh/resource-policy": "keep"} if keep else None)
        assert made == generated


def test_large_numbers_of_the_crd_stay_whole_numbers() -> None:
    text = run_helm("template", "gnnserve", str(CHART), "--show-only", "templates/crd.yaml")
    assert not re.search(r": [0-9.]+e\+[0-9]+$", text, re.MULTILINE)


def test_without_crds_there_is_none() -> None:
    assert not of_kind(render({"crds": {"enabled": False}}), "CustomResourceDefinition")


def test_the_crd_is_a_template_so_that_helm_upgrades_it() -> None:
    assert not (CHART / "crds").exists()


# --- settings


def settings_map(values: Mapping[str, Any]) -> Manifest:
    (found,) = (made for made in of_kind(render(values), "ConfigMap") if "settings.yaml" in made["data"])
    return found


def settings_of(values: dict[str, Any], folder: Path) -> Settings:
    file = folder / "settings.yaml"
    file.write_text(settings_map(values)["data"]["settings.yaml"])
    return load_settings({SETTINGS_VARIABLE: str(file)})


def test_the_operator_reads_the_defaults(tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    election = LeaderElection(lease_name="gnnserve", namespace="gnnserve-system")
    assert settings_of({}, tmp_path) == Settings(
        worker_image=f"gnnserve/generate:{version}",
        leader_election=election,
        # The chart's alone: without it every pod is as an operator of before built it (test_upgrade.py).
        generation_resources=Resources(requests={"cpu": "500m", "memory": "1Gi"}),
    )


def test_the_operator_reads_every_value_that_is_meant_for_it(tmp_path: Path) -> None:
    values = VALUE_SETS["everything set"]
    worker = values["worker"]
    in_namespaces = {"watchNamespaces": ["a", "b"], "leaderElection": {**values["leaderElection"], "fencing": False}}
    assert settings_of({**values, **in_namespaces}, tmp_path) == Settings.model_validate(
        {
            "workerImage": f"b/worker@sha256:{'0' * 64}",
            "gpuWorkerImage": "b/gpu:2",
            "generationImage": f"b/generate@sha256:{'1' * 64}",
            "imagePullPolicy": "Never",
            "workerExtraVolumes": worker["extraVolumes"],
            "workerExtraVolumeMounts": worker["extraVolumeMounts"],
            "workerExtraEnv": worker["extraEnv"],
            "namespaces": ["a", "b"],
            "clusterDomain": "cluster.example",
            "networkPolicy": True,
            "apiServerPorts": [6443, 16443],
            "postgresPorts": [15432],
            "prometheusUrl": "http://prometheus.monitoring:9090",
            "resyncSeconds": 3600,
            "concurrency": 256,
            "maxConcurrentJobs": 0,
            "generationResources": values["generation"]["resources"],
            "maxConcurrentRollouts": 9,
            "leaderElection": {
                "leaseName": "gnnserve",
                "namespace": "gnnserve-system",
                "leaseSeconds": 30,
                "renewDeadlineSeconds": 20,
                "retrySeconds": 2.5,
            },
            "logFormat": "Text",
            "logLevel": "DEBUG",
        }
    )
    assert settings_of(VALUE_SETS["no network policies"], tmp_path).network_policy is False
    labelled = settings_of(VALUE_SETS["another label of the namespace"], tmp_path)
    assert labelled.prometheus_namespace_label == "kubernetes_namespace"
    platform = settings_of(VALUE_SETS["OpenShift in a mesh"], tmp_path)
    assert (platform.run_as, platform.mesh_ports) == (RunAs.PLATFORM, (15008,))
    bound = settings_of(VALUE_SETS["their owners bind"], tmp_path)
    assert bound.namespace_grant == NamespaceGrant(
        cluster_role="gnnserve-system:gnnserve", service_account="gnnserve-system:gnnserve"
    )


def test_the_chart_writes_every_setting() -> None:
    written = yaml.safe_load(settings_map({})["data"]["settings.yaml"])
    assert written.keys() == {field.alias for field in Settings.model_fields.values()}


def test_only_changed_settings_restart_the_operator() -> None:
    def template(values: dict[str, Any]) -> Manifest:
        return one(render(values), "Deployment")["spec"]["template"]

    assert template({"concurrency": 9}) != template({})
    assert template({"serviceAccount": {"annotations": {"a": "b"}}}) == template({})
    own = template({"podAnnotations": {"checksum/settings": "pinned", "a": "b"}})["metadata"]["annotations"]
    assert own == {**template({})["metadata"]["annotations"], "a": "b"}


def test_the_settings_are_where_the_operator_looks() -> None:
    objects = render()
    pod = operator_pod(objects)
    (volume,) = (v for v in pod["volumes"] if v["name"] == "settings")
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "settings")
    assert volume["configMap"]["name"] == settings_map({})["metadata"]["name"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/etc/gnnserve", True)


# --- pods


@every_value_set
def test_both_pods_are_restricted(values: dict[str, Any]) -> None:
    objects = render(values)
    for pod in (operator_pod(objects), one(objects, "Pod")["spec"]):
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        user = None if values.get("podSecurity") else 65532
        assert context.get("runAsUser") == context.get("runAsGroup") == user
        assert "fsGroup" not in context
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all(set(volume) - {"name"} <= {"configMap", "emptyDir"} for volume in pod.get("volumes", []))
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.keys()
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_a_new_operator_stands_by_before_the_old_one_ends() -> None:
    spec = one(render(), "Deployment")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def test_several_operators_are_apart_and_not_evicted_at_once() -> None:
    assert not of_kind(render(), "PodDisruptionBudget")
    assert "affinity" not in operator_pod(render())
    objects = render({"replicas": 2})
    deployment, budget = one(objects, "Deployment"), one(objects, "PodDisruptionBudget")
    assert deployment["spec"]["replicas"] == 2
    assert budget["spec"] == {
        "maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": deployment["spec"]["selector"]
    }  # fmt: skip
    (preferred,) = operator_pod(objects)["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert preferred["podAffinityTerm"] == {
        "topologyKey": "kubernetes.io/hostname", "labelSelector": deployment["spec"]["selector"]
    }  # fmt: skip


def test_the_pod_is_as_the_values_say() -> None:
    values = VALUE_SETS["everything set"]
    template = one(render(values), "Deployment")["spec"]["template"]
    pod, metadata = template["spec"], template["metadata"]
    for name in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity", "priorityClassName"):
        assert pod[name] == values[name]
    assert pod["serviceAccountName"] == "named"
    assert metadata["labels"]["team"] == "a"
    assert metadata["labels"]["app.kubernetes.io/component"] == "operator"
    assert metadata["annotations"]["e/f"] == "g"
    (container,) = pod["containers"]
    assert container["image"] == "registry.example:5000/a/operator:1.2"
    assert container["imagePullPolicy"] == "Always"
    assert float(container["resources"]["limits"]["memory"]) == 536_870_912
    assert one(render(values), "ServiceAccount")["metadata"]["annotations"] == {"a/b": "c"}


def test_a_digest_wins_over_a_tag() -> None:
    digest = "sha256:" + "a1" * 32
    pod = operator_pod(render({"image": {"tag": "1", "digest": digest}}))
    assert pod["containers"][0]["image"] == f"gnnserve/operator@{digest}"


def test_probes_are_patient_with_a_busy_node() -> None:
    (container,) = operator_pod(render())["containers"]
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "http"}
        assert container[probe]["timeoutSeconds"] == 5
    assert {"name": "http", "containerPort": 8080} in container["ports"]


def test_the_operator_has_a_name_that_kopf_can_find() -> None:
    # kopf would ask for the name of the user, who has none in the image, and end.
    (container,) = operator_pod(render())["containers"]
    assert {"name": "POD_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}} in container["env"]


def test_a_restarted_container_has_the_name_in_the_lease_of_the_one_before() -> None:
    (container,) = operator_pod(render())["containers"]
    assert {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}} in container["env"]
    fields = {v["name"]: v["valueFrom"]["fieldRef"]["fieldPath"] for v in container["env"] if "valueFrom" in v}
    assert identity_of(fields) == "metadata.name_metadata.uid"


def operator_egress(values: Mapping[str, Any]) -> list[Manifest]:
    return list(one(render(values), "NetworkPolicy")["spec"]["egress"])


def test_the_network_policy_lets_the_operator_reach_what_it_needs() -> None:
    egress = operator_egress({"networkPolicy": {"apiServerPorts": [6443]}})
    anywhere = {port["port"] for rule in egress if "to" not in rule for port in rule["ports"]}
    assert anywhere == {53, 5353, 6443, 9090}
    (workers,) = (rule for rule in egress if "to" in rule)
    assert [port["port"] for port in workers["ports"]] == [8080]
    assert not of_kind(render({"networkPolicy": {"enabled": False}}), "NetworkPolicy")


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("http://prometheus.monitoring:9090", [9090]),
        ("http://prometheus.monitoring", [9090, 80]),
        ("https://prometheus.example/behind/a/path", [9090, 443]),
        ("http://[fd00::1]:9091/", [9090, 9091]),
    ],
    ids=["the usual port", "a Service on 80", "TLS", "an address of IPv6"],
)
def test_the_network_policy_lets_the_operator_reach_prometheus(url: str, ports: list[int]) -> None:
    usual, with_url = operator_egress({}), operator_egress({"prometheus": {"url": url}})
    (added,) = (rule for rule in with_url if {"port": 9090, "protocol": "TCP"} in rule["ports"])
    assert [port["port"] for port in added["ports"]] == ports
    assert len(with_url) == len(usual)


def test_without_ports_of_prometheus_there_is_no_rule_which_would_allow_all_of_them() -> None:
    egress = operator_egress({"networkPolicy": {"prometheusPorts": []}})
    assert all(rule["ports"] for rule in egress)
    assert 9090 not in {port["port"] for rule in egress for port in rule["ports"]}


def test_the_network_policy_lets_a_mesh_carry_what_the_operator_asks_and_is_asked() -> None:
    plain = one(render(), "NetworkPolicy")["spec"]
    meshed = one(render({"networkPolicy": {"meshPorts": [15008, 15012]}}), "NetworkPolicy")["spec"]
    ports = {"ports": [{"port": port, "protocol": "TCP"} for port in (15008, 15012)]}
    assert meshed["ingress"] == [*plain["ingress"], ports]
    assert meshed["egress"] == [*plain["egress"], ports]


def test_a_pod_monitor_is_made_on_request() -> None:
    assert not of_kind(render(), "PodMonitor")
    monitor = one(render(VALUE_SETS["everything set"]), "PodMonitor")
    # Otherwise Prometheus would put the operator's namespace in place of the GNNService's.
    assert monitor["spec"]["podMetricsEndpoints"] == [
        {"port": "http", "path": "/metrics", "interval": "15s", "honorLabels": True}
    ]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_a_dashboard_is_made_on_request() -> None:
    def dashboards(values: Mapping[str, Any]) -> list[Manifest]:
        return [found for found in of_kind(render(values), "ConfigMap") if "gnnserve.json" in found["data"]]

    assert not dashboards({})
    (usual,) = dashboards({"metrics": {"dashboard": {"enabled": True}}})
    assert usual["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(usual["data"]["gnnserve.json"]) == json.loads((CHART / "files/dashboard.json").read_text())
    (other,) = dashboards(VALUE_SETS["everything set"])
    assert other["metadata"]["labels"]["dashboards"] == "here"
    assert other["metadata"]["annotations"] == {"grafana_folder": "GNN"}


# --- helm test


def ask_as_helm_test_does(answer: Callable[[Asked], Told]) -> int:
    specification = importlib.util.spec_from_file_location("helm_test", CHART / "files/helm_test.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    with fake_server(answer) as server:
        code: int = module.main("127.0.0.1", str(server.port), patience_s="0")
    return code


METRICS = Told(body=b"# HELP gnnserve_operator_services x\ngnnserve_operator_services 1.0\n")


@pytest.mark.parametrize(
    ("pages", "code", "sentence"),
    [
        pytest.param({"/readyz": Told(body="ok"), "/metrics": METRICS}, 0, "is ready", id="a working operator passes"),
        pytest.param(
            {"/readyz": Told(503, b"no CRD"), "/metrics": METRICS}, 1, "/readyz answered 503, 200 was expected: no CRD",
            id="one that is not ready fails with its reason",
        ),
        pytest.param(
            {"/readyz": Told(), "/metrics": Told(500)}, 1, "/metrics answered 500", id="one without metrics fails"
        ),
        pytest.param(
            {"/readyz": Told(), "/metrics": Told(body=b"python_info 1.0\n")}, 1, "no metric that begins with",
            id="somebody else's metrics do not pass",
        ),
        pytest.param({"/readyz": Told(hang_up=True)}, 1, "it cannot be reached", id="a broken connection fails"),
    ],
)  # fmt: skip
def test_helm_test_says_in_a_sentence_how_it_went(
    pages: Mapping[str, Told], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask_as_helm_test_does(lambda asked: pages[asked.path]) == code
    (said,) = capsys.readouterr().out.splitlines()
    assert sentence in said


def test_helm_test_asks_the_service_of_the_release() -> None:
    objects = render(release="mine", namespace="there")
    pod = one(objects, "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    program, flag, script, host, port = pod["spec"]["containers"][0]["command"]
    service = one(objects, "Service")
    assert (program, flag) == ("python", "-c")
    assert script.strip() == (CHART / "files/helm_test.py").read_text().strip()
    assert host == f"{service['metadata']['name']}.there.svc"
    assert int(port) == service["spec"]["ports"][0]["port"]


# --- what people read and write


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"imagee": {}}, "additional properties 'imagee' not allowed"),
        ({"image": {"tagg": "1"}}, r"at '/image': additional properties 'tagg' not allowed"),
        ({"image": {"tag": 12}}, r"at '/image/tag': got number, want string"),
        ({"image": {"repository": "a/b:1"}}, r"at '/image/repository': 'a/b:1' does not match pattern"),
        ({"image": {"digest": "abc"}}, r"at '/image/digest': 'abc' does not match pattern"),
        ({"worker": {"image": {"pullPolicy": "always"}}}, r"'/worker/image/pullPolicy': value must be one of 'Always'"),
        ({"worker": {"extraEnv": [{"value": "b"}]}}, r"at '/worker/extraEnv/0': missing property 'name'"),
        ({"imagePullSecrets": ["pull"]}, r"at '/imagePullSecrets/0': got string, want object"),
        ({"watchNamespaces": "a"}, r"at '/watchNamespaces': got string, want array"),
        ({"watchNamespaces": ["A"]}, r"at '/watchNamespaces/0': 'A' does not match pattern"),
        ({"watchNamespaces": ["a", "a"]}, r"at '/watchNamespaces': items at 0 and 1 are equal"),
        ({"replicas": 0}, r"at '/replicas': minimum: got 0, want 1"),
        ({"leaderElection": {"leaseSeconds": 10}}, r"renewDeadlineSeconds < leaseSeconds, found 2, 10 and 10"),
        (
            {"leaderElection": {"retrySeconds": 5.5}},
            r"2 x retrySeconds <= renewDeadlineSeconds .* found 5.5, 10 and 15",
        ),
        ({"resyncSeconds": 0}, r"at '/resyncSeconds': minimum: got 0, want 1"),
        ({"concurrency": 0.5}, r"at '/concurrency'"),
        ({"networkPolicy": {"apiServerPorts": []}}, r"at '/networkPolicy/apiServerPorts': minItems"),
        ({"networkPolicy": {"prometheusPorts": [0]}}, r"at '/networkPolicy/prometheusPorts/0': minimum: got 0, want 1"),
        ({"prometheus": {"url": "prometheus:9090"}}, r"at '/prometheus/url': 'prometheus:9090' does not match pattern"),
        ({"prometheus": {"url": "http://a:b@c"}}, r"at '/prometheus/url': 'http://a:b@c' does not match pattern"),
        ({"networkPolicy": {"meshPorts": [0]}}, r"at '/networkPolicy/meshPorts/0': minimum: got 0, want 1"),
        ({"podSecurity": {"runAs": "1000"}}, r"at '/podSecurity/runAs': value must be one of 'Fixed', 'Platform'"),
        ({"rbac": {"bindings": "role"}}, r"at '/rbac/bindings': value must be one of 'Role', 'ClusterRole', 'Owners'"),
        (
            {"generation": {"resources": {"requests": {"cpu": 1.5}}}},
            r"at '/generation/resources/requests/cpu': got number, want integer or string",
        ),
        (
            {"generation": {"resources": {"limits": {"memory": "8 GiB"}}}},
            r"at '/generation/resources/limits/memory': '8 GiB' does not match pattern",
        ),
        ({"generation": {"resources": {"limits": {"cpus": 2}}}}, r"invalid propertyName 'cpus'"),
        ({"logs": {"level": "TRACE"}}, r"at '/logs/level': value must be one of 'DEBUG', 'INFO', 'WARNING'"),
        ({"crds": {"keep": "no"}}, r"at '/crds/keep': got string, want boolean"),
        ({"metrics": {"podMonitor": {"interval": "30"}}}, r"at '/metrics/podMonitor/interval': '30' does not match"),
        ({"podAnnotations": {"a": 1}}, r"at '/podAnnotations/a': got number, want string"),
    ],
    ids=lambda given: json.dumps(given) if isinstance(given, dict) else "",
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(HelmError, match=complaint):
        render(values)


def nulls(keys: Iterable[str], instead: Callable[[str], Any] = lambda _: None) -> dict[str, Any]:
    """Values in which these keys are null, or something else."""
    values: dict[str, Any] = {}
    for key in keys:
        *groups, name = key.split(".")
        group = values
        for part in groups:
            group = group.setdefault(part, {})
        group[name] = instead(key)
    return values


def needed_values() -> set[str]:
    """Keys of values, and of groups of values, that must not be null."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

    def needed(node: Mapping[str, Any], above: str) -> set[str]:
        if "description" in node:
            return set()
        inner = {f"{above}{name}": found for name, found in node["properties"].items()}
        below = set().union(*(needed(found, f"{key}.") for key, found in inner.items()))
        return below | {f"{above}{name}" for name in node.get("required", ())}

    return needed(schema, "")


GROUPS = sorted({v.key[: match.start()] for v in documented_values() for match in re.finditer(r"\.", v.key)})
"""Keys of groups of values, as `worker` and `worker.image`."""


def test_a_group_and_a_value_without_an_empty_form_must_not_be_null() -> None:
    """Helm takes away what is null, with its default: templates would fail, or leave out what is there by default."""
    has_no_empty_form = {
        value.key for value in documented_values() if value.default and not isinstance(value.default, list | dict)
    }  # fmt: skip
    assert needed_values() == {*GROUPS, *has_no_empty_form, "networkPolicy.apiServerPorts"}


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param([group for group in GROUPS if "." not in group], id="groups"),
        pytest.param([group for group in GROUPS if "." in group], id="groups within groups"),
        pytest.param(sorted(needed_values() - set(GROUPS)), id="values"),
    ],
)
def test_a_null_that_would_leave_nothing_is_refused_by_name(keys: list[str]) -> None:
    with pytest.raises(HelmError) as refused:
        render(nulls(keys))
    told = dict(re.findall(r"at '(.*)': missing propert(?:y|ies) (.*)", str(refused.value)))
    found = {
        f"{place.strip('/').replace('/', '.')}.{name}".strip(".")
        for place, names in told.items()
        for name in re.findall(r"'(\w+)'", names)
    }
    assert found == set(keys)


def test_any_other_null_means_none(tmp_path: Path) -> None:
    metrics = {name: {"enabled": True} for name in ("podMonitor", "prometheusRule", "dashboard")}
    keys = {value.key for value in documented_values()} - needed_values()
    switches = {f"metrics.{name}.enabled" for name in metrics}
    defaults = {value.key: value.default for value in documented_values()}

    def values(instead: Callable[[str], Any]) -> dict[str, Any]:
        found = nulls(keys - switches, instead)
        for name, enabled in metrics.items():
            found["metrics"][name] |= enabled
        return found

    with_nulls = values(lambda _: None)
    # Helm merges maps, so that an empty one would leave the default.
    empty = values(
        lambda key: dict.fromkeys(defaults[key]) if isinstance(defaults[key], dict) else type(defaults[key])()
    )
    assert render(with_nulls) == render(empty)
    assert settings_of(with_nulls, tmp_path).worker_extra_volumes == ()
    assert render(nulls(switches)) == render()
    assert "GNNService" in render_notes(with_nulls)


def test_quantities_are_those_that_the_operator_reads() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    resources = schema["properties"]["generation"]["properties"]["resources"]["properties"]
    assert {field["additionalProperties"]["pattern"] for field in resources.values()} == {QUANTITY}


def test_the_readme_lists_every_value_with_its_default() -> None:
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    assert values_table() in readme, f"the table in {CHART.name}/README.md should be:\n\n{values_table()}\n"


def test_every_value_is_documented() -> None:
    def leaves(values: Any, key: str, documented: set[str]) -> set[str]:
        if key in documented or not isinstance(values, dict):
            return {key}
        return {leaf for name, value in values.items() for leaf in leaves(value, f"{key}.{name}", documented)}

    documented = {value.key for value in documented_values()}
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    found = {leaf for name, value in values.items() for leaf in leaves(value, name, documented)}
    assert found == documented


OTHER_VALUES: dict[str, Any] = {
    "image.repository": "other/operator",
    "image.tag": "other",
    "image.digest": "sha256:" + "1" * 64,
    "image.pullPolicy": "Always",
    "imagePullSecrets": [{"name": "other"}],
    "replicas": 2,
    "leaderElection.leaseSeconds": 16,
    "leaderElection.renewDeadlineSeconds": 9,
    "leaderElection.retrySeconds": 2.5,
    "leaderElection.fencing": True,
    "worker.image.repository": "other/worker",
    "worker.image.tag": "other",
    "worker.image.digest": "sha256:" + "1" * 64,
    "worker.image.pullPolicy": "Always",
    "worker.gpuImage.repository": "other/worker-gpu",
    "worker.gpuImage.tag": "other",
    "worker.gpuImage.digest": "sha256:" + "1" * 64,
    "worker.extraVolumes": [{"name": "other", "emptyDir": {}}],
    "worker.extraVolumeMounts": [{"name": "other", "mountPath": "/other"}],
    "worker.extraEnv": [{"name": "OTHER", "value": "1"}],
    "watchNamespaces": ["other"],
    "clusterDomain": "other",
    "resyncSeconds": 61,
    "concurrency": 9,
    "generation.image.repository": "other/generate",
    "generation.image.tag": "other",
    "generation.image.digest": "sha256:" + "1" * 64,
    "generation.maxConcurrentJobs": 9,
    "generation.resources": {"limits": {"memory": "8Gi"}},
    "rollout.maxConcurrentServices": 9,
    "networkPolicy.enabled": False,
    "networkPolicy.apiServerPorts": [16443],
    "networkPolicy.prometheusPorts": [19090],
    "networkPolicy.postgresPorts": [15432],
    "networkPolicy.meshPorts": [15008],
    "prometheus.url": "http://other:9090",
    "prometheus.namespaceLabel": "other",
    "logs.format": "Text",
    "logs.level": "WARNING",
    "crds.enabled": False,
    "crds.keep": False,
    "rbac.create": False,
    "rbac.bindings": "Owners",
    "rbac.aggregateClusterRoles": False,
    "deletionGuard.enabled": False,
    "serviceAccount.create": False,
    "serviceAccount.name": "other",
    "serviceAccount.annotations": {"other": "1"},
    "podSecurity.runAs": "Platform",
    "resources": {"limits": {"memory": "1Gi"}},
    "nodeSelector": {"other": "1"},
    "tolerations": [{"key": "other"}],
    "affinity": {"podAffinity": {}},
    "priorityClassName": "other",
    "podAnnotations": {"other": "1"},
    "podLabels": {"other": "1"},
    "metrics.podMonitor.enabled": False,
    "metrics.podMonitor.interval": "31s",
    "metrics.podMonitor.labels": {"other": "1"},
    "metrics.prometheusRule.enabled": False,
    "metrics.prometheusRule.labels": {"other": "1"},
    "metrics.dashboard.enabled": False,
    "metrics.dashboard.labels": {"other": "1"},
    "metrics.dashboard.annotations": {"other": "1"},
}


ALONE: dict[str, dict[str, Any]] = {
    "prometheus.namespaceLabel": {},
    "rbac.bindings": {"watchNamespaces": ["a"]},
    **{f"worker.gpuImage.{of}": {"worker": {"gpuImage": {"repository": "named"}}} for of in ("tag", "digest")},
    **{f"generation.image.{of}": {"generation": {"image": {"repository": "named"}}} for of in ("tag", "digest")},
}
"""Values that go with these others only."""


def test_every_value_does_something() -> None:
    assert OTHER_VALUES.keys() == {value.key for value in documented_values()}
    # So that all of them have something to act on.
    monitoring = ("podMonitor", "prometheusRule", "dashboard")
    monitored = {"serviceAccount": {"name": "named"}, "metrics": {name: {"enabled": True} for name in monitoring}}
    usual = render(monitored)
    for key, other in OTHER_VALUES.items():
        *groups, name = key.split(".")
        # Rules and dashboard refuse another label, and bindings are about the namespaces that are named.
        plain = ALONE.get(key)
        values = json.loads(json.dumps(monitored if plain is None else plain))
        group = values
        for part in groups:
            group = group.setdefault(part, {})
        group[name] = other
        assert render(values) != (usual if plain is None else render(plain)), key


def test_links_in_the_readme_lead_somewhere() -> None:
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    for file, anchor in links(readme):
        page = (CHART / file).read_text(encoding="utf-8") if file else readme
        assert not anchor or anchor in anchors(page), f"{file}#{anchor}"


def test_the_schema_describes_every_value_in_the_same_words() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

    def described(node: Mapping[str, Any], key: str = "") -> dict[str, str]:
        if "description" in node:
            return {key: node["description"]}
        assert node["additionalProperties"] is False, key
        return {
            name: text
            for property_, inner in node["properties"].items()
            for name, text in described(inner, f"{key}.{property_}".strip(".")).items()
        }

    found = described(schema)
    # What a parent chart may hand down.
    assert {found.pop("global"), found.pop("enabled")}
    assert found == {value.key: value.meaning for value in documented_values()}


@every_value_set
def test_the_notes_name_what_is_there(values: dict[str, Any]) -> None:
    notes = render_notes(values, release="mine", namespace="there")
    namespace = next(iter(values.get("watchNamespaces", [])), "default")
    assert "rollout status deployment/mine-gnnserve" in notes
    assert "helm test mine --namespace there" in notes
    assert f"kubectl --namespace {namespace} get gnns digits" in notes
    domain = values.get("clusterDomain", "cluster.local")
    assert f"http://digits.{namespace}.svc.{domain}/v1/predict" in notes
    assert "\n\n\n" not in notes
    assert "Its Lease, the CustomResourceDefinition" in notes or not values.get("crds", {}).get("keep", True)


def test_the_example_in_the_notes_is_a_gnnservice() -> None:
    notes = render_notes()
    example = notes.partition("<<EOF\n")[2].partition("EOF\n")[0]
    manifest = yaml.safe_load(example)
    assert manifest["kind"] == "GNNService"
    assert manifest["spec"] == {"graph": {"source": {"builtin": "Digits"}}}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "removes the operator only"),
        ({"crds": {"keep": False}}, "CAUTION: crds.keep is false"),
        ({"crds": {"enabled": False}}, "neither installs nor upgrades the CustomResourceDefinition"),
        ({"rbac": {"create": False}}, "the operator can do nothing before ServiceAccount mine-gnnserve"),
    ],
    ids=["what stays", "what does not stay", "no CRD", "no roles"],
)
def test_the_notes_say_what_to_beware_of(values: dict[str, Any], sentence: str) -> None:
    assert sentence in render_notes(values, release="mine")
