"""docs/manifest.md, generated from the types, so that a field never exists without its line there.

`python -m gnnserve_api.generated.reference` writes it, `--check` says whether it is up to date. The fields of `spec`
come out of the CRD's schema (`schema.py`), which has defaults, bounds and docstrings side by side; only what the types
do not say, how a manifest is read and what changing it causes, is text here.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnserve_api.generated.generated_file import write_or_compare
from gnnserve_api.generated.schema import POOL, spec_schema
from gnnserve_api.generated.structural_schema import told_default
from gnnserve_api.spec.pool import POOL_KIND
from gnnserve_api.spec.service import API_VERSION, KIND, Metadata

REFERENCE_PATH = Path(__file__).resolve().parents[3] / "docs" / "manifest.md"
EXAMPLE = f"""\
apiVersion: {API_VERSION}
kind: {KIND}
metadata:
  name: digits
spec:
  graph:
    source: {{builtin: Digits}}
"""
_LINE_LENGTH = 120
_FEWEST_SHARED = 4
"""Fields with the same words in two sections from which on the later section names the earlier one."""
_Fields = Mapping[str, tuple[bool, Mapping[str, Any]]]
"""Fields by name: whether each is required, and its schema."""
_TABLE_HEAD = ("| field | type | default | allowed | meaning |", "|---|---|---|---|---|")

_INTRODUCTION = f"""\
<!-- Generated from crds/gnnserve_api/spec/ by `python -m gnnserve_api.generated.reference`; do not edit.
     `make generate` writes it, `make check` compares it. -->

# The manifest

A `{KIND}` says which graph is served, by which model, in which variants, and what requests may expect. `run`,
`generate`, `serve` and `validate` read it ([cli.md](cli.md)). The smallest one:

```yaml
{EXAMPLE.rstrip()}
```

`examples/digits.yaml` is a fuller one, and [data.md](data.md) has one for a graph of your own. How a manifest is read:

- One manifest a file, in YAML and UTF-8. `gnnserve validate MANIFEST` lists everything wrong with it at once, each
  problem with the field, the value, what was expected and what to write instead.
- Unknown fields are refused, and so is a field that is given twice. A number in quotes is not a number.
- An absent field takes its default. `null` is accepted only where the default is "none", and means the same.
- A file or folder is named by a path, or by a URI `file:///…` (absolute, percent-encoded). On a laptop a relative path
  begins in the folder of the manifest, and `~` is your home. In a cluster it begins at the mount of the data volume,
  `spec.graph.volume`; there `~` and `..` are refused ([operator.md](operator.md#graphs-of-your-own)).

Another value in `spec.graph`, `spec.model`, `spec.task` or `spec.variants` changes the *recipe*: a new revision is
generated beside the one that is there ([repository.md](repository.md)), on one machine by the next `run` or
`generate`, in a cluster while the old revision answers ([operator.md](operator.md)). On one machine `spec.objective`,
`spec.worker.batching`, `spec.endpoint.overlay`, `spec.updates.refresh` and `spec.model.program.limits` take effect at
the next start. How a latency and a tolerance act together is in [http.md](http.md).
"""


_POOLS = f"""\
## {POOL_KIND}

Worker pods that answer for several services, in a cluster only
([operator.md](operator.md#several-services-in-one-worker)): `apiVersion` is `{API_VERSION}`, `kind` is
`{POOL_KIND}`, and `metadata.name` is what `spec.worker.poolRef.name` of its services says. All of `spec` may be left
out.
"""


def page() -> str:
    spec = spec_schema()
    sections: dict[str, str] = {}
    told: dict[str, _Fields] = {}
    parts = [_section(path, node, sections, told) for path, node in list(_objects("spec", spec, sections))]
    of_pools = list(_objects(f"{POOL_KIND}.spec", spec_schema(POOL), sections))
    pools = [_section(path, node, sections, told) for path, node in of_pools]
    return "\n".join([_INTRODUCTION, _head(), *parts, _POOLS, *pools])


def _objects(path: str, node: Mapping[str, Any], sections: dict[str, str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every object, parents first; of those with the same fields the first. `sections`: its path, by its fields."""
    sections[_fields(node)] = path
    yield path, node
    for name, child in node["properties"].items():
        for inner, step in ((child, ""), (child.get("items", {}), "[]")):
            if inner.get("properties") and _fields(inner) not in sections:
                yield from _objects(f"{path}.{name}{step}", inner, sections)


def _fields(node: Mapping[str, Any]) -> str:
    return json.dumps([node["properties"], node.get("x-kubernetes-validations")], sort_keys=True)


def _head() -> str:
    """The fields that every Kubernetes resource has; what gnnserve does with them is said nowhere in the types."""
    metadata = Metadata.model_json_schema()["properties"]
    name, namespace = metadata["name"], metadata["namespace"]
    rows = [
        _row("apiVersion", "string", "required", f"`{API_VERSION}`", "Version of this format."),
        _row("kind", "string", "required", f"`{KIND}`", "What the file describes."),
        _row("metadata.name", "string", "required", _allowed(name), "Name of the service: a folder of the repository, "
             "a label of the metrics."),
        _row("metadata.namespace", "string", f"`{namespace['default']}`", _allowed(namespace),
             "Keeps services of the same name apart."),
    ]  # fmt: skip
    note = _wrapped("Other fields of `metadata`, such as labels, are accepted and not read.")
    return "\n".join(["## apiVersion, kind, metadata", "", *_TABLE_HEAD, *rows, "", *note, ""])


def _section(path: str, node: Mapping[str, Any], sections: Mapping[str, str], told: dict[str, _Fields]) -> str:
    """A section's text. `told`: what the sections before it explain, to which it adds its own."""
    required = node.get("required", ())
    fields = {name: (name in required, child) for name, child in node["properties"].items()}
    before, shared = _shared(fields, told)
    own = told[path] = {name: one for name, one in fields.items() if name not in shared}
    lines = [f"## {path}", ""]
    if shared:
        names = ", ".join(f"`{name}`" for name in shared)
        lines += [*_wrapped(f"As in [`{before}`](#{_anchor(before)}): {names}."), ""]
    if own:
        lines += _TABLE_HEAD
    values: list[str] = []
    for name, (is_required, child) in own.items():
        field = f"{path}.{name}"
        meaning, *members = child.get("description", "").split("\n")
        members = members or child.get("items", {}).get("description", "").split("\n")[1:]
        lines.append(_row(field, _type(child, sections), _default(child, is_required), _allowed(child), meaning))
        if members:
            values += ["", f"Values of `{field}`:", "", *(line for member in members for line in _member(member))]
    rules = [rule["message"] for rule in node.get("x-kubernetes-validations", ())]
    if rules:
        values += ["", "Checked across fields:", "", *(line for rule in rules for line in _wrapped(f"- {rule}"))]
    return "\n".join([*lines, *values, ""])


def _shared(fields: _Fields, told: Mapping[str, _Fields]) -> tuple[str, Sequence[str]]:
    """The section that explains most of these fields, and which; none where they are few."""
    alike = {path: [name for name in fields if before.get(name) == fields[name]] for path, before in told.items()}
    path = max(alike, key=lambda each: len(alike[each]), default="")
    names = alike.get(path, ())
    return (path, names) if len(names) >= _FEWEST_SHARED else ("", ())


def _row(field: str, kind: str, default: str, allowed: str, meaning: str) -> str:
    cells = (f"`{field}`", kind, default, allowed, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(node: Mapping[str, Any], sections: Mapping[str, str]) -> str:
    if "x-kubernetes-int-or-string" in node:
        return "integer or string"
    match node.get("type"):
        case "object" if "properties" in node:
            return f"[mapping](#{_anchor(sections[_fields(node)])})" if node["properties"] else "empty mapping"
        case "object":
            return "mapping of " + ("strings" if "type" in node["additionalProperties"] else "quantities")
        case "array" if "properties" in node["items"]:
            return f"list of [mappings](#{_anchor(sections[_fields(node['items'])])})"
        case "array":
            return f"list of {_several(node['items'])}"
        case kind:
            return str(kind)


def _several(node: Mapping[str, Any]) -> str:
    if "x-kubernetes-int-or-string" in node:
        return "integers and strings"
    return f"lists of {_several(node['items'])}" if node["type"] == "array" else f"{node['type']}s"


def _anchor(field: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[.\[\]]", "", field).lower()


def _default(node: Mapping[str, Any], required: bool) -> str:
    if required:
        return "required"
    if "default" not in node:
        return "none"
    # Of an object, the default is that of each member.
    return "as below" if node.get("type") == "object" else told_default(node)


def _allowed(node: Mapping[str, Any]) -> str:
    found = []
    if "properties" not in node:
        found += [rule["message"].removeprefix("must be ") for rule in node.get("x-kubernetes-validations", ())]
    if "x-kubernetes-int-or-string" in node:
        return ", ".join(found)
    if "enum" in node:
        found.append(", ".join(f"`{value}`" for value in node["enum"]))
    if "maxItems" in node:
        found.append(f"{node.get('minItems', 0)} to {node['maxItems']} entries")
    if "maxProperties" in node:
        found.append(f"0 to {node['maxProperties']} entries")
    inner = node.get("items", node.get("additionalProperties"))
    if isinstance(inner, dict) and (each := _allowed(inner)):
        found.append(f"each {each}")
    if node.get("x-kubernetes-list-type") == "set":
        found.append("none twice")
    found += _bounds(node)
    if "pattern" in node:
        found.append(f"matches `{node['pattern']}`")
    if "maxLength" in node:
        found.append(f"at most {node['maxLength']} characters")
    return ", ".join(found)


def _bounds(node: Mapping[str, Any]) -> list[str]:
    if "minimum" not in node:
        return []
    low, high = _number(node["minimum"]), _number(node["maximum"])
    above, below = node.get("exclusiveMinimum", False), node.get("exclusiveMaximum", False)
    if not above and not below:
        return [f"{low} to {high}"]
    return [f"{'above' if above else 'at least'} {low}", f"{'below' if below else 'at most'} {high}"]


def _number(value: float) -> str:
    return f"{int(value)}" if value == int(value) else f"{value}"


def _member(line: str) -> list[str]:
    value, _, meaning = line.removeprefix("- ").partition(": ")
    return _wrapped(f"- `{value}`: {meaning}" if meaning else f"- `{value}`")


def _wrapped(text: str) -> list[str]:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.wrap(text, _LINE_LENGTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gnnserve_api.generated.reference", description="Write the page of fields."
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when the file differs from the types")
    parser.add_argument("--path", type=Path, default=REFERENCE_PATH, help="the file (default: docs/manifest.md)")
    options = parser.parse_args(arguments)
    return write_or_compare(options.path, page(), check=options.check)


if __name__ == "__main__":
    sys.exit(main())
