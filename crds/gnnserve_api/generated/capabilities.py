"""docs/capabilities.md: which parts of a manifest go together, for each kind of graph, task and model.

`python -m gnnserve_api.generated.capabilities` writes it, `--check` says whether it is up to date. A cell is what
reading a manifest says: it works, or the sentence that refuses it. So the page has no words of its own about any of
them, and what is refused or admitted from now on is on it. That it is true is tested cell by cell, by `tests/matrix`,
which also writes the page's second part: what servers of each column refuse.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnserve_api.errors import InputError
from gnnserve_api.generated.generated_file import write_or_compare
from gnnserve_api.manifest import Document, parse_document
from gnnserve_api.spec import device_rules
from gnnserve_api.spec.service import API_VERSION, KIND, GNNServiceSpec

CAPABILITIES_PATH = Path(__file__).resolve().parents[3] / "docs" / "capabilities.md"
_Parts = Mapping[str, Any]
"""Fields of a spec."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A kind of graph, task and model."""

    name: str
    spec: _Parts
    """The least that says it."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that a service may be given beside it."""

    name: str
    page: str
    """Page of docs that says what it is."""
    parts: _Parts
    """Fields that ask for it."""


_ONE_TYPE: _Parts = {"graph": {"source": {"npz": {"uri": "graph.npz"}}}}
_SEVERAL: _Parts = {"graph": {"source": {"typed": {"npz": {"uri": "shop"}}}}}
_LINKS: _Parts = {"task": {"links": {"dimensions": 64}}}
_LAYERS: _Parts = {"model": {"architecture": "GraphSAGE", "fanouts": [10, 10]}}
_LIGHT_GCN: _Parts = {
    "model": {"architecture": "LightGCN", "fanouts": [0]}, "variants": {"pruning": {"factors": [1]}},
}  # fmt: skip
_PROGRAM: _Parts = {
    "model": {
        "program": {
            "uri": "model.onnx", "hops": 2, "scores": {"name": "logits", "columns": 64},
            "embeddings": {"name": "rows", "columns": 64},
            "inputs": [{"name": "x", "is": "Features"}, {"name": "edge_index", "is": "Edges"}],
        },
        "expected": {"uri": "expected.npz"},
    }
}  # fmt: skip

_LISTED: _Parts = {
    "model": {
        "layers": [
            {"conv": "GraphSAGE", "width": 16, "norm": "Batch", "activation": "Elu"}, {"conv": "GraphSAGE"},
        ],
        "fanouts": [10, 10],
    }
}  # fmt: skip


def merged(*parts: _Parts) -> dict[str, Any]:
    """Fields of all of them; of a field that several have, the last one's."""
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            is_section = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
            found[name] = merged(found[name], value) if is_section else value
    return found


SETUPS = (
    Setup("classes, one type", merged(_ONE_TYPE, _LAYERS)),
    Setup("classes, several types", merged(_SEVERAL, _LAYERS)),
    Setup("links, one type", merged(_ONE_TYPE, _LINKS, _LAYERS)),
    Setup("links, several types", merged(_SEVERAL, _LINKS, _LAYERS)),
    Setup("links by LightGCN", merged(_SEVERAL, _LINKS, _LIGHT_GCN)),
    Setup("classes by a program", merged(_ONE_TYPE, _PROGRAM)),
    Setup("links by a program", merged(_ONE_TYPE, _LINKS, _PROGRAM)),
    Setup("classes by listed layers", merged(_ONE_TYPE, _LISTED)),
    Setup("classes by listed layers, several types", merged(_SEVERAL, _LISTED)),
    Setup("links by listed layers", merged(_ONE_TYPE, _LINKS, _LISTED)),
    Setup("links by listed layers, several types", merged(_SEVERAL, _LINKS, _LISTED)),
)
_UPDATES: _Parts = {"updates": {"log": {"sqlite": {}}}}
_FOLLOWED: _Parts = {"variants": {"stored": [1, 2], "storedFollowChanges": True}}
_CANARY: _Parts = {"routing": {"canary": {"revision": "0123456789ab", "percent": 5}}}
_CHECKPOINT: _Parts = {"uri": "weights.safetensors"}
FEATURES = (
    Feature("changes of the graph (`updates`)", "updates.md", _UPDATES),
    Feature(
        "… with stored layers behind the first that follow (`variants.storedFollowChanges`)", "updates.md",
        merged(_UPDATES, _FOLLOWED),
    ),
    Feature(
        "… with stored layers that may be stale, within a budget (`updates.refresh`)", "variants.md",
        merged(_UPDATES, merged(_FOLLOWED, {"updates": {"refresh": {}}})),
    ),
    Feature(
        "… with networks trained anew on the changed graph (`updates.compaction.retrain`)", "updates.md",
        merged(_UPDATES, {"updates": {"compaction": {"retrain": True}}}),
    ),
    Feature("a canary (`routing.canary`)", "operator.md", _CANARY),
    Feature("… beside changes", "operator.md", merged(_CANARY, _UPDATES)),
    Feature("shadows (`routing.shadowPermille`)", "operator.md", {"routing": {"shadowPermille": 5}}),
    Feature("recommendations (`embeddings`)", "recommend.md", {"embeddings": {}}),
    Feature(
        "… where a perceptron scores pairs (`task.links.decoder: MLP`)", "recommend.md",
        {"embeddings": {}, "task": {"links": {"decoder": "MLP"}}},
    ),
    Feature(
        "fewer columns (`variants.pruning.factors`)", "variants.md", {"variants": {"pruning": {"factors": [1, 4]}}}
    ),
    Feature("stored first layer (`variants.stored: [1]`)", "variants.md", {"variants": {"stored": [1]}}),
    Feature(
        "fewer channels (`variants.channels`)", "variants.md",
        {"variants": {"channels": [{"factor": 2, "table": "Projected"}]}},
    ),
    Feature(
        "… over feature columns (`table: Features`)", "variants.md",
        {"variants": {"channels": [{"factor": 2, "table": "Features"}]}},
    ),
    Feature(
        "… over the stored first layer (`table: Stored`)", "variants.md",
        {"variants": {"channels": [{"factor": 2, "table": "Stored"}]}},
    ),
    Feature("fewer neighbours (`variants.fanouts`)", "variants.md", {"variants": {"fanouts": [[5, 5]]}}),
    Feature("one-row variants (`variants.oneRow`)", "variants.md", {"variants": {"oneRow": [{"hops": 0}]}}),
    Feature(
        "… over one hop, beside changes (`oneRow: [{hops: 1}]`, `storedFollowChanges`)", "updates.md",
        merged(_UPDATES, {"variants": {"oneRow": [{"hops": 1}], "storedFollowChanges": True}}),
    ),
    Feature(
        "cascades (`variants.cascades`)", "variants.md",
        # Of stages that there are for any graph, task and model.
        {
            "variants": {
                "oneRow": [{"hops": 0}],
                "storage": ["float32", "int8"],
                "cascades": [{"first": "mlp0-int8", "then": "mlp0"}],
            }
        },
    ),
    Feature("search for variants (`variants.search`)", "variants.md", {"variants": {"search": "Auto"}}),
    Feature("thresholds per class (`variants.thresholds`)", "variants.md", {"variants": {"thresholds": "PerClass"}}),
    Feature("weights that are given (`model.checkpoint`)", "models.md", {"model": {"checkpoint": _CHECKPOINT}}),
    Feature(
        "variants that are given (`variants.given`)", "models.md",
        {"variants": {"given": [{"checkpoint": _CHECKPOINT}]}},
    ),
    Feature(
        "… as programs (`variants.given[].program`)", "programs.md", {"variants": {"given": [_PROGRAM["model"]]}}
    ),
    Feature(
        "propagated features (`model.architecture: SGC`)", "models.md",
        {"model": {"architecture": "SGC", "fanouts": [0], "hops": 2}},
    ),
)  # fmt: skip
_TASK = {"task"}
_VALUE = re.compile(r" \(value .*\)$")
_INTRODUCTION = """\
<!-- Generated by `python -m gnnserve_api.generated.capabilities` out of what reading a manifest says; do not edit.
     `make generate` writes it, `make check` compares it. -->

# What goes together

Each cell says whether a manifest may have the row's fields beside the column's graph, task and model. A number is that
of the sentence below that refuses it: `gnnserve validate` says it, and in a cluster the API server, before anything is
trained. *Not made*: it may be given, and no variant comes of it, since the model does not read what these variants
would have less of. *Not asked*: the variants that come of it answer nothing, since they do not follow changes.
`gnnserve validate` says which, of either. A dash: it is of another task. Of listed layers {on_gpu};
others are refused with `worker.device: GPU`.
"""


def manifest_of(spec: _Parts) -> dict[str, Any]:
    """A manifest that says this and nothing else."""
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "service"}, "spec": spec}


def is_of_task(setup: Setup, feature: Feature) -> bool:
    """Whether the feature is of the setup's task."""
    return feature.parts.keys() & _TASK <= setup.spec.keys()


def refusal_of(setup: Setup, *features: Feature) -> str | None:
    """The sentence that refuses them together; None: they go together."""
    document = manifest_of(merged(setup.spec, *(feature.parts for feature in features)))
    try:
        parse_document(Document("manifest", document))
    except InputError as error:
        first = str(error).split("\n")[1].strip()
        # The value is that of this page's manifest.
        return _VALUE.sub("", first).removeprefix("spec: ")
    return None


def _without_variants(feature: Feature) -> list[Setup]:
    """Setups that may be given the feature, and have no other variants by it, though others have."""
    able = [setup for setup in SETUPS if is_of_task(setup, feature) and refusal_of(setup, feature) is None]
    idle = [setup for setup in able if _variants(setup, feature) == _variants(setup)]
    return idle if len(idle) < len(able) else []


def _answers_nothing(setup: Setup, feature: Feature) -> bool:
    """Whether it has variants by the feature, none of which follows the changes that the feature asks for."""
    added = _variants(setup, feature) - _variants(setup)
    return bool(added) and added.issubset(_spec_of(setup, feature).standing_variants())


def _variants(setup: Setup, *features: Feature) -> frozenset[str]:
    return frozenset(_spec_of(setup, *features).possible_variants())


def _spec_of(setup: Setup, *features: Feature) -> GNNServiceSpec:
    document = manifest_of(merged(setup.spec, *(feature.parts for feature in features)))
    return parse_document(Document("manifest", document)).spec


SERVED_PART = "<!-- Generated out of what served revisions say; do not edit."
"""First words of the page's second part, which `tests/matrix` writes and which stays as it is here."""


def page_with(served_part: str) -> str:
    return f"{page()}{served_part}"


def page() -> str:
    """The first part."""
    sentences: list[str] = []
    rows = [row(["", *(setup.name for setup in SETUPS)]), row(["---"] * (1 + len(SETUPS)))]
    for feature in FEATURES:
        cells, idle = [f"[{feature.name}]({feature.page})"], _without_variants(feature)
        for setup in SETUPS:
            if not is_of_task(setup, feature):
                cells.append("–")
                continue
            said = refusal_of(setup, feature)
            if said is not None and said not in sentences:
                sentences.append(said)
            if said is not None:
                cells.append(f"{sentences.index(said) + 1}")
            elif setup in idle:
                cells.append("not made")
            else:
                cells.append("not asked" if _answers_nothing(setup, feature) else "yes")
        rows.append(row(cells))
    listed = [f"{number}. {sentence}" for number, sentence in enumerate(sentences, start=1)]
    introduction = _INTRODUCTION.format(on_gpu=device_rules.LISTED_ON_GPU)
    return "\n".join([introduction, *rows, "", *listed, ""])


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gnnserve_api.generated.capabilities", description=f"Write {CAPABILITIES_PATH.name}."
    )
    parser.add_argument("--check", action="store_true", help="compare it instead; exit 1 if it differs")
    written = CAPABILITIES_PATH.read_text(encoding="utf-8") if CAPABILITIES_PATH.exists() else ""
    begins = written.find(f"\n{SERVED_PART}")
    kept = "" if begins < 0 else written[begins:]
    return write_or_compare(CAPABILITIES_PATH, page_with(kept), check=parser.parse_args(arguments).check)


if __name__ == "__main__":
    sys.exit(main())
