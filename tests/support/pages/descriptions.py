"""Rules that descriptions of fields keep, so that each can be read alone.

`kubectl explain` and an editor show one field at a time, without its parent: a description names its subject, the unit
of a number, and what absence means. Defaults of a schema are added to the CRD by
`gnnserve_api.generated.structural_schema`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

FEWEST_WORDS = 4
_LEANING_START = re.compile(
    r"(?:absent|also|as|at|by|empty|for|from|how|if|in|it|its|of|on|such|that|the same|their|there|these|they|this|"
    r"those|to|what|when|where|which|who|whom|whose|why|with|without)\b",
    re.IGNORECASE,
)
_PRONOUN = re.compile(r"\b(?:it|its|they|them|their|these|those)\b(?! own\b)", re.IGNORECASE)
"""Pronouns that stand for something outside of the first sentence; "of its own" stands for what the sentence names."""
_SENTENCE_END = re.compile(r"\.(?:\s|$)")
_UNIT_IN_NAME = re.compile(r"(?:Ms|Seconds|Bytes|Percents?|Permille|percent)$")
_UNITS = re.compile(
    r"\b(?:milliseconds|seconds|bytes|cores|percent|permille|MiB|as in [0-9]+Gi|"
    # what is counted
    r"attempts|changes|channels|columns|edges|GPUs|gradient steps|heads|hops|layers|masters|matrices|models|"
    r"neighbours|nodes|number k|pairs|passes|places|pods|products|requests|times|towers|variants|workers|"
    # numbers without a unit
    r"divisor|epsilon|factors?|fraction of 1|generation|indices|offset|port|rate|seed|share|slope|weights?)\b",
    re.IGNORECASE,
)
_ABSENCE = re.compile(r"\b(?:absent|empty|without)\b", re.IGNORECASE)
_UNION = re.compile(r"exactly one of (.+) must be set")


def problems(node: Schema, path: str) -> Iterator[str]:
    """What is wrong with the descriptions of an object's fields, at any depth, each with the field's path."""
    required = {*node.get("required", ()), *_chosen(node)}
    for name, child in node.get("properties", {}).items():
        field = f"{path}.{name}"
        for problem in [*_of_text(child), *_of_field(name, child, is_required=name in required)]:
            yield f"{field}: {problem}: {_text(child)!r}"
        yield from problems(child, field)
        for inner in (child.get("items"), child.get("additionalProperties")):
            if isinstance(inner, dict):
                if "description" in inner:
                    yield from (f"{field}[]: {problem}: {_text(inner)!r}" for problem in _of_text(inner))
                yield from problems(inner, f"{field}[]")


def problems_of_text(text: str) -> list[str]:
    """What makes a description lean on the line above it."""
    sentence = _SENTENCE_END.split(text, maxsplit=1)[0]
    found = []
    if start := _LEANING_START.match(sentence):
        found.append(f"begins with {start.group()!r}")
    if pronoun := _PRONOUN.search(sentence):
        found.append(f"{pronoun.group()!r} stands for what another field names")
    if len(sentence.split()) < FEWEST_WORDS:
        found.append(f"has fewer than {FEWEST_WORDS} words")
    return found


def _of_text(node: Schema) -> list[str]:
    return problems_of_text(_text(node)) if "description" in node else ["has no description"]


def _of_field(name: str, node: Schema, *, is_required: bool) -> Iterator[str]:
    text = _text(node)
    if _is_number(node) and not _UNIT_IN_NAME.search(name) and not _UNITS.search(text):
        yield "names no unit"
    if not is_required and "default" not in node and not _ABSENCE.search(text):
        yield "says neither a default nor what absence means"


def _text(node: Schema) -> str:
    """The description without the lines of an enumeration's members."""
    return str(node.get("description", "")).partition("\n- ")[0]


def _is_number(node: Schema) -> bool:
    """Whether it is a number, a size or a quantity, or several of them."""
    inner = node.get("items") or node.get("additionalProperties")
    if isinstance(inner, dict):
        return _is_number(inner)
    is_size = any("must be a size" in rule["message"] for rule in node.get("x-kubernetes-validations", ()))
    return is_size or node.get("type") in {"integer", "number"} or "x-kubernetes-int-or-string" in node


def _chosen(node: Schema) -> Iterator[str]:
    """Members of which exactly one must be set, by a rule of the object."""
    for rule in node.get("x-kubernetes-validations", ()):
        if union := _UNION.search(rule["message"]):
            yield from re.split(r", | and ", union[1])
        if only := re.fullmatch(r"has\(self\.(\w+)\)", rule["rule"]):
            yield only[1]
