from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel
from tests.support.operator.older_release import Released, released_specs

from gnnserve_api.manifest import parse_manifest
from gnnserve_api.spec.audience import Audience, audiences_of
from gnnserve_api.spec.graph import GraphSpec
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.recipe import HISTORICAL_DEFAULTS, digest_of_recipe
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import Task
from gnnserve_api.spec.variants import Variants

BASE = """\
apiVersion: gnnserve.dev/v1alpha1
kind: GNNService
metadata: {name: a}
spec: {graph: {source: {builtin: Digits}}%s}
"""


GIVEN = "{checkpoint: {uri: 'file:///a.safetensors'}, %s}"


def recipe(rest: str = "") -> str:
    return parse_manifest(BASE % (f", {rest}" if rest else ""), "m").spec.recipe()


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param("objective: {latencyMs: 5}", id="another latency objective"),
        pytest.param("objective: {accuracyTolerancePermille: 5}", id="another accuracy tolerance"),
        pytest.param("worker: {batching: {maxSeeds: 7}}", id="another batch size"),
        pytest.param("endpoint: {overlay: {maxNodes: 0}}", id="no overlays"),
        pytest.param("worker: {replicas: 3, resources: {limits: {cpu: 1}}}", id="other workers"),
        pytest.param("worker: {device: GPU, gpu: {count: 2}}", id="another device"),
        pytest.param("worker: {gpuMemory: 4Gi, cache: {policy: FIFO}}", id="another use of its memory"),
        pytest.param("generation: {gpu: {}, retries: 0}", id="another machine to train on"),
        pytest.param("repository: {claimName: mine}", id="another repository"),
        pytest.param("repository: {history: 3}", id="fewer models to go back to"),
        pytest.param("updates: {log: {sqlite: {}}, maxDelta: 1Gi}", id="changes of the graph"),
        pytest.param(
            "updates: {log: {sqlite: {}}, compaction: {deltaPercent: 20, retrain: true}}", id="compaction of changes"
        ),
        pytest.param("image: mine, suspend: true", id="another image, suspended"),
        pytest.param("model: {hidden: 128}", id="a default written out"),
        pytest.param("model: {training: {}}, variants: {pruning: {lasso: {}}}", id="empty sections"),
        pytest.param("model: {training: {weightDecay: 5e-4}}", id="a default written otherwise"),
        pytest.param("variants: {pruning: {lasso: {epochs: 3}}}", id="settings of a method that is not used"),
        pytest.param("variants: {pruning: {factors: [8, 1, 4, 2]}}", id="another order of the factors"),
        pytest.param("variants: {pruning: {choice: All}}", id="every factor, written out"),
        pytest.param("variants: {storage: [float32], projection: Auto}", id="the default tables written out"),
    ],
)
def test_what_generation_does_not_depend_on_keeps_the_recipe(rest: str) -> None:
    assert recipe(rest) == recipe()


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param("model: {hidden: 64}", id="another width"),
        pytest.param("model: {architecture: GIN}", id="another architecture"),
        pytest.param("model: {architecture: GAT, heads: 2}", id="attention"),
        pytest.param("model: {fanouts: [25]}", id="another depth"),
        pytest.param("model: {training: {seed: 1}}", id="another seed"),
        pytest.param("model: {training: {epochs: Auto}}", id="as many epochs as it takes"),
        pytest.param("variants: {pruning: {factors: [1, 2]}}", id="other factors"),
        pytest.param("variants: {pruning: {choice: Auto}}", id="those factors that are worth a training"),
        pytest.param("variants: {pruning: {method: Random}}", id="another ranking"),
        pytest.param("variants: {pruning: {method: Lasso}}", id="an informed ranking of another kind"),
        pytest.param("variants: {storage: [int8]}", id="another storage"),
        pytest.param("variants: {storage: [float32, int8]}", id="one storage more"),
        pytest.param("variants: {projection: Disabled}", id="no projection"),
        pytest.param("variants: {metric: MacroF1}", id="another metric"),
        pytest.param("variants: {thresholds: PerClass}", id="a threshold per class"),
        pytest.param("variants: {cascades: [{first: x8, then: x1}]}", id="a cascade"),
        pytest.param(f"variants: {{given: [{GIVEN % 'columns: [0, 1]'}]}}", id="a given variant"),
        pytest.param("model: {checkpoint: {uri: 'file:///a.safetensors'}}", id="given weights"),
    ],
)
def test_what_generation_depends_on_changes_the_recipe(rest: str) -> None:
    assert recipe(rest) != recipe()


@pytest.mark.parametrize(
    "rest",
    [
        "pruning: {factors: [1], %s}",
        "projection: Disabled, pruning: {factors: [1, 4], %s}",
        "search: Auto, pruning: {%s}",
    ],
)
def test_a_choice_without_anything_to_choose_keeps_the_recipe(rest: str) -> None:
    listed, chosen = (recipe(f"variants: {{{rest % choice}}}") for choice in ("choice: All", "choice: Auto"))
    assert listed == chosen


def test_the_graph_and_its_scaling_change_the_recipe() -> None:
    digits = BASE % ""
    file = digits.replace("builtin: Digits", "npz: {uri: 'file:///a.npz'}")
    other = file.replace("a.npz", "b.npz")
    scaled = digits.replace("}}}", "}, normalization: Disabled}}")
    mounted = file.replace("'}}}}", "'}}, volume: {claimName: mine}}}")
    assert mounted != file
    assert parse_manifest(mounted, "m").spec.recipe() == parse_manifest(file, "m").spec.recipe()
    assert len({parse_manifest(text, "m").spec.recipe() for text in (digits, file, other, scaled)}) == 4


def test_with_a_revision_that_is_named_the_recipe_depends_on_that_alone() -> None:
    named = recipe("revision: 4d4396dec1c5")
    assert named == recipe("revision: 4d4396dec1c5, model: {hidden: 64}")
    assert len({named, recipe("revision: 5c1d7be3b0a4"), recipe()}) == 3


def test_the_recipe_is_the_same_in_every_process() -> None:
    """Pinned: another value would retrain every published model."""
    assert recipe() == "edf3d744c86fae1e"


def test_a_changed_copy_has_a_recipe_of_its_own() -> None:
    spec, other = (parse_manifest(BASE % rest, "m").spec for rest in ("", ", model: {hidden: 7}"))
    before = spec.recipe()
    assert spec.model_copy(update={"model": other.model}).recipe() == other.recipe() != before
    assert spec.recipe() == before


def test_the_recipe_of_a_stated_number_of_epochs_is_what_it_was() -> None:
    """Pinned before `Auto` was taken; the default stays 30."""
    assert recipe("model: {training: {epochs: 30}}") == recipe()
    assert recipe("model: {training: {epochs: 12}}") == "e56bbdbc51dc2b4c"


def test_settings_of_the_method_that_is_used_change_the_recipe() -> None:
    assert recipe("variants: {pruning: {method: Lasso, lasso: {epochs: 3}}}") != recipe(
        "variants: {pruning: {method: Lasso}}"
    )


CHECKPOINT = "model: {checkpoint: {uri: 'file:///a.safetensors'}%s}"


@pytest.mark.parametrize(
    ("rest", "same"),
    [
        pytest.param(", training: {epochs: 3, batchSize: 7, dropout: 0.1}", True, id="how it would be trained"),
        pytest.param(", training: {scope: Transductive}", False, id="the scope, over which layers are refitted"),
        pytest.param(", training: {seed: 1}", False, id="the seed of Random ranking"),
        pytest.param(", hidden: 64", False, id="the width"),
    ],
)
def test_of_given_weights_the_recipe_has_only_what_matters(rest: str, same: bool) -> None:
    assert (recipe(CHECKPOINT % rest) == recipe(CHECKPOINT % "")) == same


def test_the_columns_of_a_given_variant_are_part_of_the_recipe_and_training_beside_them_is_not() -> None:
    alone = "variants: {pruning: {factors: []}, projection: Disabled, given: [%s]}"
    one, other = (alone % (GIVEN % f"columns: {columns}") for columns in ("[0, 1]", "[1, 0]"))
    assert recipe(one) != recipe(other)
    assert recipe(f"{one}, model: {{training: {{epochs: 3}}}}") == recipe(one)
    beside = one.replace("pruning: {factors: []}, ", "")
    assert recipe(f"{beside}, model: {{training: {{epochs: 3}}}}") != recipe(beside)


def test_pinning_the_given_weights_changes_the_recipe() -> None:
    pinned = CHECKPOINT.replace("a.safetensors'", f"a.safetensors', sha256: {'0' * 64}")
    assert recipe(pinned % "") != recipe(CHECKPOINT % "")


def test_a_budget_for_stale_rows_does_nothing_to_what_is_generated() -> None:
    followed = "variants: {stored: [2], storedFollowChanges: true}, updates: {log: {sqlite: {}}%s}"
    assert recipe(followed % ", refresh: {rows: 1}") == recipe(followed % "")


def test_the_order_of_storages_does_nothing() -> None:
    assert recipe("variants: {storage: [int8, float32]}") == recipe("variants: {storage: [float32, int8]}")


def test_the_order_of_cascades_and_of_their_shares_does_nothing() -> None:
    one, other = "{first: x8, then: x1, passOnPercents: [%s]}", "{first: x4, then: x1}"
    cascades = "variants: {cascades: [%s]}"
    assert recipe(cascades % f"{one % '5, 9'}, {other}") == recipe(cascades % f"{other}, {one % '9, 5'}")
    assert recipe(cascades % (one % "5, 9")) != recipe(cascades % (one % "5"))


def test_a_field_of_the_members_of_a_list_is_left_out_while_it_is_null() -> None:
    """So that a list of objects can get a field later."""
    bare, later = ({"variants": {"given": [{"uri": "a", **more}]}} for more in ({}, {"columns": None}))
    assert digest_of_recipe(bare) == digest_of_recipe(later)


RELEASED = released_specs()


@pytest.mark.parametrize("released", RELEASED.values(), ids=RELEASED)
def test_nobody_is_retrained_by_an_upgrade(released: Released) -> None:
    assert GNNServiceSpec.model_validate(released.spec).recipe() == released.recipe


def test_the_stored_specs_differ_in_what_they_generate() -> None:
    same = {released.recipe: name for name, released in RELEASED.items()}
    assert len(same) > 40


def test_every_default_has_its_row_in_history() -> None:
    """A field without a row would change the recipe of every spec that does not mention it. Whoever adds a field adds
    its row; whoever changes a default leaves the row as it is, and adds the field to `changed` here."""
    changed: set[str] = set()
    today = {
        **dict(_defaults("graph", GraphSpec)),
        **dict(_defaults("model", Model)),
        **dict(_defaults("variants", Variants)),
        **dict(_defaults("task", Task)),
        "task": {},
        "model": {},
        "variants": {},
    }
    said = dict(audiences_of(GNNServiceSpec))
    made_of = [path for path, audience in said.items() if audience & Audience.REVISION]
    recorded = {
        path: default
        for path, default in today.items()
        if default is not None and any(f"{each}.".startswith(f"{path}.") for each in made_of)
    }
    assert recorded.keys() == HISTORICAL_DEFAULTS.keys()
    assert {path for path, default in recorded.items() if default != HISTORICAL_DEFAULTS[path]} == changed


def _defaults(path: str, model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """Every field with a default under its dotted name; `{}` for a section."""
    for name, field in model.model_fields.items():
        parts = () if get_origin(field.annotation) is tuple else get_args(field.annotation) or (field.annotation,)
        (section,) = [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)] or [None]
        if not field.is_required():
            default = field.get_default()
            dumped = model.model_construct(**{name: default}).model_dump(mode="json", include={name})[name]
            yield f"{path}.{name}", {} if section is not None and default is not None else dumped
        if section is not None:
            yield from _defaults(f"{path}.{name}", section)
