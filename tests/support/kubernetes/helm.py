"""The project's chart as tests see it: the helm binary, what it renders, and the values that values.yaml documents."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.harness.binaries import build
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.layout import Layout

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts/gnnserve"

Manifest = dict[str, Any]


class HelmError(Exception):
    """What helm said when it refused."""


@dataclass(frozen=True, slots=True)
class DocumentedValue:
    key: str
    """The key with dots, as for `--set`."""
    default: Any
    meaning: str


@cache
def find_helm() -> str:
    """The harness's, else one on PATH, else it is compiled: minutes, or a wait for who compiles it already."""
    layout = Layout.of_this_machine()
    built = layout.bin / "helm"
    found = None if built.exists() else shutil.which("helm")
    if found is not None:
        return found
    try:
        build(layout, ["helm"])
    except HarnessError as error:
        raise FileNotFoundError(
            f"helm is neither at {built} nor on PATH: `python3 -m tests.cluster.harness build` makes it, but: {error}"
        ) from error
    return str(built)


def run_helm(*arguments: str) -> str:
    """Standard output. No cluster is asked, and nothing of the user's own helm is read or written."""
    with tempfile.TemporaryDirectory() as home:
        places = {f"HELM_{place}_HOME": f"{home}/{place}" for place in ("CACHE", "CONFIG", "DATA")}
        environment = {**os.environ, **places, "KUBECONFIG": f"{home}/none"}
        done = subprocess.run([find_helm(), *arguments], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise HelmError(done.stderr + done.stdout)
    return done.stdout


def render(
    values: Mapping[str, Any] | None = None,
    *,
    release: str = "gnnserve",
    namespace: str = "gnnserve-system",
    arguments: tuple[str, ...] = (),
) -> list[Manifest]:
    """Every object of the release, hooks included."""
    text = _with_values("template", json.dumps(values or {}), release, namespace, arguments)
    return load_all(text)


def render_notes(values: Mapping[str, Any] | None = None, *, release: str = "gnnserve", namespace: str = "ns") -> str:
    words = _with_values("install", json.dumps(values or {}), release, namespace, ("--dry-run=client",))
    return words.partition("NOTES:\n")[2]


def load_all(text: str) -> list[Manifest]:
    """The documents of a stream, by libyaml: the CRD is most of it, and PyYAML's own parser takes ten times as long."""
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


@cache
def _with_values(command: str, values: str, release: str, namespace: str, arguments: tuple[str, ...]) -> str:
    """What helm prints for these values, in JSON; the chart does not change while tests run."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(values)
        file.flush()
        return run_helm(command, release, str(CHART), "--namespace", namespace, "--values", file.name, *arguments)


def documented_values() -> list[DocumentedValue]:
    """Each value of values.yaml that is not a group of others, with the comment above it."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    defaults = yaml.safe_load(text)
    return [DocumentedValue(key, _look_up(defaults, key), meaning) for key, meaning in _comments(text)]


def _comments(text: str) -> Iterator[tuple[str, str]]:
    """A key counts as documented by the comment directly above; below such a key nothing is looked at."""
    groups: list[tuple[int, str]] = []
    comment: list[str] = []
    documented_at: int | None = None
    for line in text.splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if stripped.startswith("#"):
            comment.append(stripped.removeprefix("#").strip())
            continue
        found = re.match(r"([A-Za-z]+):", stripped)
        inside = documented_at is not None and indent > documented_at
        if found is not None and not inside:
            groups = [(depth, name) for depth, name in groups if depth < indent] + [(indent, found[1])]
            documented_at = indent if comment else None
            if comment:
                yield ".".join(name for _, name in groups), " ".join(comment)
        comment = []


def _look_up(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values[part]
    return values


def values_table() -> str:
    """The table in the chart's README.md."""
    rows = [f"| `{v.key}` | `{json.dumps(v.default, ensure_ascii=False)}` | {v.meaning} |" for v in documented_values()]
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *rows])
