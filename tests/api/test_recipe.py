from __future__ import annotations

import pytest

from gnnserve_api.manifest import parse_manifest

BASE = """\
apiVersion: gnnserve.dev/v1alpha1
kind: GNNService
metadata: {name: a}
spec: {graph: {source: {builtin: Digits}}%s}
"""


def recipe(rest: str = "") -> str:
    return parse_manifest(BASE % (f", {rest}" if rest else ""), "m").spec.recipe()


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param("objective: {latencyMs: 5}", id="another latency objective"),
        pytest.param("objective: {accuracyTolerancePermille: 5}", id="another accuracy tolerance"),
        pytest.param("worker: {batching: {maxSeeds: 7}}", id="another batch size"),
        pytest.param("worker: {replicas: 3, resources: {limits: {cpu: 1}}}", id="other workers"),
        pytest.param("generation: {gpu: {}, retries: 0}", id="another machine to train on"),
        pytest.param("repository: {claimName: mine}", id="another repository"),
        pytest.param("image: mine, suspend: true", id="another image, suspended"),
        pytest.param("model: {hidden: 128}", id="a default written out"),
        pytest.param("model: {training: {}}, variants: {pruning: {lasso: {}}}", id="empty sections"),
        pytest.param("model: {training: {weightDecay: 5e-4}}", id="a default written otherwise"),
        pytest.param("variants: {pruning: {lasso: {epochs: 3}}}", id="settings of a method that is not used"),
        pytest.param("variants: {pruning: {factors: [8, 1, 4, 2]}}", id="another order of the factors"),
    ],
)
def test_what_generation_does_not_depend_on_keeps_the_recipe(rest: str) -> None:
    assert recipe(rest) == recipe()


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param("model: {hidden: 64}", id="another width"),
        pytest.param("model: {architecture: GIN}", id="another architecture"),
        pytest.param("model: {fanouts: [25]}", id="another depth"),
        pytest.param("model: {training: {seed: 1}}", id="another seed"),
        pytest.param("variants: {pruning: {factors: [1, 2]}}", id="other factors"),
        pytest.param("variants: {pruning: {method: Random}}", id="another ranking"),
        pytest.param("variants: {pruning: {method: Lasso}}", id="an informed ranking of another kind"),
    ],
)
def test_what_generation_depends_on_changes_the_recipe(rest: str) -> None:
    assert recipe(rest) != recipe()


def test_the_graph_and_its_scaling_change_the_recipe() -> None:
    digits = BASE % ""
    file = digits.replace("builtin: Digits", "npz: {uri: 'file:///a.npz'}")
    other = file.replace("a.npz", "b.npz")
    scaled = digits.replace("}}}", "}, normalization: Disabled}}")
    mounted = file.replace("'}}}}", "'}}, volume: {claimName: mine}}}")
    assert mounted != file
    assert parse_manifest(mounted, "m").spec.recipe() == parse_manifest(file, "m").spec.recipe()
    assert len({parse_manifest(text, "m").spec.recipe() for text in (digits, file, other, scaled)}) == 4


def test_the_recipe_is_the_same_in_every_process() -> None:
    """Pinned: another value would retrain every published model."""
    assert recipe() == "2c0cee403102cad0"


def test_settings_of_the_method_that_is_used_change_the_recipe() -> None:
    assert recipe("variants: {pruning: {method: Lasso, lasso: {epochs: 3}}}") != recipe(
        "variants: {pruning: {method: Lasso}}"
    )
