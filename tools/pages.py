"""Tables of docs/ that only repeat what the code says of itself: conditions, errors, metrics, options, messages.

`python -m tools.pages` fills each block `<!-- generated: NAME -->` of a page, `make check` compares.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from inspect import signature
from pathlib import Path
from typing import Any

import typer.main
import yaml
from pydantic.alias_generators import to_camel
from tests.support.serving.exposed import ExposedMetric, exposed, operator_metrics, worker_metrics
from tools.extensions import EXTENSIONS, today
from tools.message_tables import MESSAGES, families, message_texts

from gnnserve_api.docstrings import attribute_docstrings
from gnnserve_api.files.device_layers import CONVOLUTIONS as ON_GPU
from gnnserve_api.files.layers import Convolution
from gnnserve_api.http.live_accuracy import LabelProblem
from gnnserve_api.http.protocol import PredictRequest
from gnnserve_api.objective import Objective
from gnnserve_api.spec.audience import Audience, Selection, selection
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.status.pool_status import PoolConditionType
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.service_status import ConditionType
from gnnserve_cli.exits import MEANINGS
from gnnserve_cli.main import app
from gnnserve_client import Client
from gnnserve_worker.asking.question import ErrorCode
from gnnserve_worker.layers.convolutions.projected import PROJECTED
from gnnserve_worker.layers.convolutions.registry import KINDS
from gnnserve_worker.scheduling.refusal import RefusalReason
from gnnserve_worker.serving.http.changes.description import list_parameters
from gnnserve_worker.serving.http.openapi import nodes_parameters
from gnnserve_worker.serving.http.replies import ERROR_STATUS, REFUSAL_STATUS

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"(<!-- generated: ([^\n]+) -->\n).*?(<!-- end of generated -->)", re.DOTALL)
CHART_FILES = DOCS.parent / "charts" / "gnnserve" / "files"
ALERTS, RECORDING = CHART_FILES / "alerts.yaml", CHART_FILES / "recording-rules.yaml"
_TEMPLATE = re.compile(r"{{([^}]*)}}")
"""A place that Prometheus fills in: a label, or the value."""
_LARGE = 10**9
"""Bounds from which on none is shown: no query reaches them."""
_COMMON = 3
"""Commands from which on an option that all of them describe alike is described once, for all."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def members_table(head: str, meaning: str, members: type[StrEnum]) -> str:
    """Each member of an enum with its docstring."""
    texts = attribute_docstrings(members)
    rows = [(f"`{member.value}`", " ".join(texts[member.name].split())) for member in members]
    return table((head, meaning), rows)


_TORCH_NAME = re.compile(r"\b(\w*(?:Conv|APPNP))\)\.$")
"""torch_geometric's name of a convolution, at the end of what is said of it."""


def convolutions_table() -> str:
    """Table of where each convolution of listed layers is computed. ONNX is traced of the torch module."""
    texts = attribute_docstrings(Convolution)
    rows = []
    for kind, computed in KINDS.items():
        named = _TORCH_NAME.search(" ".join(texts[kind.name].split()))
        place = type(computed).__module__.removeprefix("gnnserve_worker.layers.").replace(".", "/")
        rows.append((
            f"`{kind}`",
            f"`{named[1]}`" if named else "",
            f"`{type(computed).__name__}` in `{place}.py`",
            "yes" if kind in PROJECTED else "no",
            "yes" if kind in ON_GPU else "no",
        ))  # fmt: skip
    return table(("convolution", "torch, ONNX", "CPU", "over products of rows", "GPU"), rows)


def commands() -> dict[str, Any]:
    """Commands as click knows them, by name, such as `graph inspect`."""
    return {
        f"{name} {inner}".strip(): command
        for name, outer in typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
        for inner, command in getattr(outer, "commands", {"": outer}).items()
    }


def audiences_table() -> str:
    """Fields of a GNNService by who is handed them, and so by what another value makes anew."""
    texts = attribute_docstrings(Audience)
    rows = [
        (", ".join(f"`{name}`" for name in _merged([*_names(selection(GNNServiceSpec, audience))])), text)
        for audience in Audience
        if (text := texts[str(audience.name)])
    ]
    return table(("fields", "handed to"), [(names, " ".join(text.split())) for names, text in rows])


def _names(selected: Selection, above: str = "") -> Iterator[str]:
    for name, below in selected.items():
        path = f"{above}{to_camel(name)}"
        if isinstance(below, dict):
            yield from _names(below, f"{path}.")
        else:
            yield path


def _merged(names: Sequence[str]) -> Iterable[str]:
    """Names, of which more than two of the same part of a section are told by that part."""
    parts = [".".join(name.split(".")[:2]) for name in names]
    counts = Counter(parts)
    return dict.fromkeys(part if counts[part] > 2 else name for name, part in zip(names, parts, strict=True))


def arguments_table() -> str:
    """Arguments of the Python client's `predict`, in the words of a request's fields."""
    of_request = {name: message_texts(PredictRequest)[name] for name in PredictRequest.__struct_fields__}
    of_objective = message_texts(Objective)
    told = of_request | {
        "latency_ms": of_objective["latency_ms"],
        "tolerance_permille": of_objective["accuracy_tolerance_permille"],
        "timeout_s": "Seconds for all attempts and pauses together; absent: the client's.",
    }
    rows = []
    for name, parameter in signature(Client.predict).parameters.items():
        if name != "self":
            default = parameter.default
            shown = "required" if default is parameter.empty else "" if default is None else f"`{default!r}`"
            rows.append((f"`{name}`", shown, told[name]))
    return table(("argument of `predict`", "default", "meaning"), rows)


def commands_table() -> str:
    """Commands with the first sentence of their help."""
    rows = [
        (f"[`gnnserve {name}`](#gnnserve-{name.replace(' ', '-')})", _paragraphs(command.help)[0])
        for name, command in commands().items()
    ]
    return table(("command", "purpose"), rows)


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n")]


def parameters_table(described: Iterable[Mapping[str, Any]]) -> str:
    """Parameters of a query, as OpenAPI has them."""
    rows = []
    for each in described:
        default, most = each["schema"].get("default"), each["schema"].get("maximum")
        limit = f" At most {most:,}." if most is not None and most < _LARGE else ""
        rows.append((f"`{each['name']}`", "" if default is None else f"`{default}`", f"{each['description']}{limit}"))
    return table(("parameter", "default", "meaning"), rows)


def errors_table() -> str:
    rows = []
    for codes in (ErrorCode, RefusalReason):
        texts = attribute_docstrings(codes)
        for code in codes:
            status = "none" if code is ErrorCode.CLIENT_GONE else (ERROR_STATUS | REFUSAL_STATUS).get(code, 400)
            rows.append((f"`{code.value}`", str(status), " ".join(texts[code.name].split())))
    return table(("code", "status", "meaning, and what to do"), rows)


def metrics_table(metrics: Iterable[ExposedMetric]) -> str:
    rows = [(f"`{each.name}`", each.kind, ", ".join(f"`{one}`" for one in each.labels), each.text) for each in metrics]
    return table(("metric", "type", "labels", "meaning"), rows)


_Row = tuple[str, str, str]
"""Option or argument, its default, and what it means."""


def described(parameter: Any) -> _Row | None:
    """The row of an option or argument; none of `--help`."""
    if parameter.name == "help":
        return None
    metavar = f" {parameter.metavar}" if parameter.metavar else ""
    is_option = parameter.opts[0].startswith("-")
    names = [f"`{name}{metavar}`" for name in parameter.opts] if is_option else [f"`{parameter.metavar}`"]
    help_text = " ".join((parameter.help or "").split())
    return ", ".join(names), _default(parameter), help_text


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.default
    if not parameter.show_default or value is None or callable(value) or isinstance(value, bool):
        return ""
    values = value if isinstance(value, (list, tuple)) else [value]
    words = (
        each.value if isinstance(each, Enum) else f"{each:g}" if isinstance(each, float) else each for each in values
    )
    return ", ".join(f"`{word}`" for word in words)


def option_blocks() -> Iterator[tuple[str, str]]:
    """A table for each command, and one of the options that are common to several; what an earlier command describes
    is named with a link to it."""
    rows = {name: [row for each in command.params if (row := described(each))] for name, command in commands().items()}
    uses = Counter(row for listed in rows.values() for row in listed if row[0].startswith("`-"))
    common = [row for row, count in uses.items() if count >= _COMMON]
    head = ("option", "default", "meaning")
    yield "common options", table(head, common)
    told = dict[_Row, str]()
    for name, listed in rows.items():
        own = [row for row in listed if row not in common and row not in told]
        elsewhere = dict[str, list[str]]()
        for row in listed:
            if row in common:
                elsewhere.setdefault("[Common](#common-options).", []).append(row[0])
            elif row in told:
                link = f"As for [`{told[row]}`](#gnnserve-{told[row].replace(' ', '-')})."
                elsewhere.setdefault(link, []).append(row[0])
        told |= dict.fromkeys((row for row in own if row[0].startswith("`-")), name)
        linked = [(", ".join(names), "", link) for link, names in elsewhere.items()]
        yield f"options of {name}", table(head, [*own, *linked])


def rules_of(file: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> Iterator[tuple[str, str]]:
    """What each alert of the chart says, with names of labels in place of their values."""
    for alert in rules_of(ALERTS):
        wait = f" after {alert['for']}" if "for" in alert else ""
        said = (_TEMPLATE.sub(_shown, alert["annotations"][part]).strip() for part in ("summary", "description"))
        yield f"alert {alert['alert']}", f"*{alert['labels']['severity'].capitalize()}{wait}.* {'. '.join(said)}"


def _shown(template: re.Match[str]) -> str:
    label = re.search(r"\$labels\.(\w+)", template[1])
    return label[1].upper() if label else "…"


def blocks() -> dict[str, str]:
    of_worker = list(exposed(worker_metrics()))
    of_canary = [each for each in of_worker if each.name.startswith("gnnserve_canary_")]
    return {
        "conditions": members_table("condition", "true when", ConditionType),
        "conditions of a pool": members_table("condition of a pool", "true when", PoolConditionType),
        "reasons": members_table("reason", "what to do", Reason),
        "errors": errors_table(),
        "metrics": metrics_table(each for each in of_worker if each not in of_canary),
        "metrics of a second revision": metrics_table(of_canary),
        "metrics of the operator": metrics_table(exposed(operator_metrics())),
        "exit codes": table(("code", "meaning"), [(str(int(code)), meaning) for code, meaning in MEANINGS.items()]),
        "families": table(("family", "what its variants save"), families()),
        "why a label was not taken": members_table("`reason`", "the label", LabelProblem),
        **{name: table(message.head, [*message.rows()]) for name, message in MESSAGES.items()},
        "convolutions": convolutions_table(),
        "commands": commands_table(),
        "fields by audience": audiences_table(),
        "arguments of predict": arguments_table(),
        "ways of load": "\n".join(f"- {way}" for way in _paragraphs(commands()["load"].help)[1:]),
        "parameters of nodes": parameters_table(nodes_parameters()),
        "parameters of the log": parameters_table(list_parameters()),
        **dict(option_blocks()),
        **dict(alerts()),
        **{f"today: {heading}": today(heading) for heading in EXTENSIONS},
        "recording rules": ", ".join(f"`{rule['record']}`" for rule in rules_of(RECORDING)),
    }


def filled(page: str, known: Mapping[str, str]) -> str:
    """The page with its blocks written anew. Raises KeyError where it has one of another name."""
    return BLOCK.sub(lambda block: f"{block[1]}{known[block[2]]}\n{block[3]}", page)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page differs")
    check = parser.parse_args(arguments).check
    known, differing = blocks(), list[str]()
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if (fresh := filled(page, known)) != page:
            differing.append(path.name)
            if not check:
                path.write_text(fresh, encoding="utf-8")
    if check and differing:
        print(f"{', '.join(differing)}: tables differ from what the code says; run `make generate`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
