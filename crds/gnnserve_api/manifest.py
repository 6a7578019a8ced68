"""From a YAML file to a `GNNService`, or to one error that lists everything wrong with it.

Reads as the API server reads: no conversion of strings to numbers, no Python names of fields. A manifest that
passes here is one that `kubectl apply` takes. What the fields mean is in `spec/`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import IO, Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gnnserve_api.errors import InputError, remedy_of
from gnnserve_api.spec.service import API_VERSION, KIND, GNNService, GNNServiceSpec

_EXAMPLE = "examples/digits.yaml is a complete manifest"
_MOST_BYTES = 2**20
_MOST_VALUES = 100_000
"""After aliases are followed: a few hundred bytes of aliases of aliases can stand for billions."""
_DEEPEST = 64
_MOST_DIGITS = 100

Location = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """One of those that `---` separates in a text."""

    where: str
    """For messages."""
    content: object
    """The document as YAML parses it."""

    @property
    def other_kind(self) -> str | None:
        """Its kind, where it is an object of another API than gnnserve's."""
        if not isinstance(self.content, dict):
            return None
        version, kind = self.content.get("apiVersion"), self.content.get("kind")
        if not isinstance(version, str) or not isinstance(kind, str):
            return None
        return None if version.partition("/")[0] == API_VERSION.partition("/")[0] else kind


def load_manifest(path: Path) -> GNNService:
    return parse_manifest(read_text(path), str(path))


def read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return read_text_from(file, str(path))
    except FileNotFoundError as error:
        raise InputError(str(path), "no such file", f"give the path of a manifest; {_EXAMPLE}") from error
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}", remedy_of(error, "name a file")) from error


def read_text_from(file: IO[bytes], where: str) -> str:
    """`where` names it in messages."""
    try:
        return file.read(_MOST_BYTES + 1).decode()
    except UnicodeDecodeError as error:
        if error.end > _MOST_BYTES:
            raise _too_long(where) from None
        raise InputError(where, f"is not UTF-8 text (byte {error.start})", "give a YAML manifest in UTF-8") from error


def parse_manifest(text: str, where: str) -> GNNService:
    """`where` names the text in messages: a path, or `standard input`."""
    documents = split_documents(text, where)
    if len(documents) > 1:
        raise InputError(
            where, f"holds {len(documents)} documents, expected one GNNService", "put each into a file of its own"
        )
    return parse_document(documents[0])


def split_documents(text: str, where: str) -> list[Document]:
    """At least one; empty ones do not count."""
    if len(text) > _MOST_BYTES or len(text.encode(errors="surrogatepass")) > _MOST_BYTES:
        raise _too_long(where)
    contents = _contents(text, where)
    if len(contents) == 1:
        return [Document(where, contents[0])]
    return [Document(f"{where}, document {number}", content) for number, content in enumerate(contents, start=1)]


def parse_document(given: Document) -> GNNService:
    where = given.where
    document, as_json = _mapping(given)
    problems = list(_identity_problems(document))
    if document.get("kind", KIND) != KIND:
        raise _input_error(where, problems)  # the fields of another kind are not ours to judge
    try:
        # Through JSON, so that strict mode still takes enums from strings and tuples from lists.
        service = GNNService.model_validate_json(as_json, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors()
        if details[0]["type"] == "json_invalid":
            raise InputError(where, f"holds what JSON cannot: {details[0]['msg']}", _FLATTEN) from None
        problems += [_describe(detail) for detail in details if not _is_said_elsewhere(detail)]
        raise _input_error(where, problems) from None
    if (problem := _impossible_variants(service.spec)) is not None:
        raise _input_error(where, [problem])
    return service


def _impossible_variants(spec: GNNServiceSpec) -> str | None:
    """Said before anything is trained; the operator says it by a condition, so that stored objects stay readable."""
    impossible = spec.impossible_variants()
    if not impossible:
        return None
    field = "variant" if spec.routing.variant is not None else "weights"
    possible = (*spec.variants.listed_names(), *spec.variants.optional_names())
    return (
        f"spec.routing.{field}: names {', '.join(impossible)}, which spec.variants does not generate; name some of "
        f"{', '.join(possible)}, or change spec.variants.pruning.factors, storage or projection"
    )


def _input_error(where: str, problems: list[str]) -> InputError:
    heading = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return InputError(where, "\n  ".join([heading, *map(_printable, problems)]))


def _too_long(where: str) -> InputError:
    return InputError(where, "is longer than 1 MiB", f"give a manifest, not a graph; {_EXAMPLE}")


# --- YAML

_FLATTEN = "a manifest has about six levels; check its brackets and its indentation"


class _ExcessError(Exception):
    """Valid YAML, and far more of it than any manifest is."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


def _check_scalar(node: yaml.ScalarNode) -> None:
    """What YAML can write, and neither JSON nor UTF-8 can."""
    surrogate = next((c for c in node.value if "\ud800" <= c <= "\udfff"), None)
    if surrogate is not None:
        problem = f"{_printable(surrogate)} is half a character, which no UTF-8 text has"
        raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
    if node.tag == "tag:yaml.org,2002:int" and len(node.value) > _MOST_DIGITS:
        problem = f"an integer of {len(node.value):,} digits is more than any field takes"
        raise yaml.composer.ComposerError(None, None, problem, node.start_mark)


class _Loader(yaml.SafeLoader):
    """YAML whose plain scalars are what JSON has: null, booleans, integers, floats (`1e-3` among them), strings.

    PyYAML follows YAML 1.1, where `1e-3` is a string, `1:30` is ninety and `2026-01-01` a date.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._values_of: dict[yaml.Node, int] = {}
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> Any:
        # While composing, where an alias is still one node and has cost nothing.
        is_alias = self.check_event(yaml.AliasEvent)
        values_before = self._values
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _ExcessError(f"is nested more than {_DEEPEST} levels deep", _FLATTEN)
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        self._values += 1
        if is_alias:
            self._values += self._values_of.get(node, 0)
        else:
            if isinstance(node, yaml.ScalarNode):
                self._values += len(node.value) // 100  # an alias repeats long texts too
                _check_scalar(node)
            self._values_of[node] = self._values - values_before
        if self._values > _MOST_VALUES:
            raise _ExcessError(f"expands to more than {_MOST_VALUES:,} values",
                               "a manifest has some dozens; write out what aliases (`*name`) repeat")  # fmt: skip
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # While composing, because constructing mixes merged (`<<`) fields in, which may be overridden.
        node = super().compose_mapping_node(anchor)
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.composer.ComposerError(None, None, "a field name must be plain text", key.start_mark)
            if key.value in seen and key.tag != _MERGE:
                problem = f"field `{_short(key.value)}` is already set on line {seen[key.value]}; keep one of them"
                raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
            seen[key.value] = line
        return node


_MERGE = "tag:yaml.org,2002:merge"
_Loader.yaml_implicit_resolvers = {}
_SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF", "tTfFyYnNoO"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?((0|[1-9][0-9_]*)(\.[0-9_]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
     "-+0123456789."),
    ("merge", r"<<", "<"),
)  # fmt: skip
for _name, _pattern, _first in _SCALARS:
    # An empty plain scalar is looked up under "".
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", re.compile(rf"^(?:{_pattern})$"), ["" if c == "\0" else c for c in _first]
    )


def _contents(text: str, where: str) -> list[object]:
    try:
        contents = [d for d in yaml.load_all(text, Loader=_Loader) if d is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = _printable(str(error.problem or error))
        raise InputError(f"{where}{line}", f"not valid YAML: {problem}", "correct that line") from None
    except _ExcessError as error:
        raise InputError(where, error.problem, error.remedy) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(where, f"not valid YAML: {error}", "give a YAML manifest in UTF-8") from None
    except (KeyError, AttributeError, TypeError):
        # PyYAML converts what an explicit tag names without looking whether the text fits.
        raise InputError(where, "not valid YAML: a tag does not fit its value", "remove tags such as !!bool") from None
    except RecursionError:
        raise InputError(where, "is nested too deeply", _FLATTEN) from None
    if not contents:
        raise InputError(where, "is empty, expected a GNNService manifest", _EXAMPLE)
    return contents


def _mapping(given: Document) -> tuple[dict[str, Any], str]:
    where, document = given.where, given.content
    if not isinstance(document, dict):
        raise InputError(
            where,
            f"holds {_shown(document)}, expected a mapping with apiVersion, kind, metadata and spec",
            "put one manifest into a file, without a list around it" if isinstance(document, list) else _EXAMPLE,
        )
    try:
        return document, json.dumps(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            where, f"holds what JSON cannot: {error}", "remove tags such as !!binary and aliases that hold themselves"
        ) from None


# --- what a person reads


def _identity_problems(document: Mapping[str, Any]) -> Iterator[str]:
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if field not in document:
            yield f"{field}: missing; add `{field}: {expected}`"
        elif document[field] != expected:
            yield (
                f"{field}: {_shown(document[field])} is not served by this gnnserve, expected {expected}; "
                f"write `{field}: {expected}`, or pass a {KIND} manifest"
            )


def _is_said_elsewhere(detail: ErrorDetails) -> bool:
    if detail["loc"][0] in {"apiVersion", "kind"}:
        return True
    # Pydantic counts a list's valid entries only; each invalid one has its own line.
    return detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]


def _describe(detail: ErrorDetails) -> str:
    owner, location = _resolve(detail["loc"])
    path = _path(location)
    found, context, field = detail["input"], detail.get("ctx", {}), str(detail["loc"][-1])
    kind = detail["type"]
    if kind == "extra_forbidden":
        return f"{path}: unknown field (value {_shown(found)}); {_nearest(field, owner)}"
    if kind == "missing":
        return f"{path}: missing; add it{_purpose(owner, field)}"
    if kind == "value_error":
        return f"{path}: {context['error']} (value {_shown(found)})"
    if found is None:
        return f"{path}: is empty (null), expected {_expected(detail)}; give it a value or remove the line"
    return f"{path}: found {_shown(found)}, expected {_expected(detail)}; {_remedy(detail, found)}"


_TYPES = {
    "bool_type": "true or false",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "tuple_type": "a list",
    "model_type": "a mapping",
}

_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
    "too_short": ("min_length", "a list of at least"),
    "too_long": ("max_length", "a list of at most"),
    "string_too_short": ("min_length", "a string of a length of at least"),
    "string_too_long": ("max_length", "a string of a length of at most"),
    "string_pattern_mismatch": ("pattern", "a string that matches"),
    "enum": ("expected", ""),
    "literal_error": ("expected", ""),
}


def _expected(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        entries = " entries" if kind in {"too_short", "too_long"} else ""
        limit = context[key]
        shown = f"{limit:.10g}" if isinstance(limit, float) else str(limit)
        return f"{words} {shown}{entries}".strip()
    if kind in _TYPES:
        return _TYPES[kind]
    return detail["msg"].removeprefix("Input should be ")


def _remedy(detail: ErrorDetails, found: object) -> str:
    kind, location = detail["type"], detail["loc"]
    if kind == "enum":
        return _nearest_choice(str(found), re.findall(r"'([^']*)'", str(detail.get("ctx", {})["expected"])))
    if kind in {"int_type", "float_type"} and isinstance(found, str):
        kind = "number_in_quotes"
    if kind == "string_type" and isinstance(found, list | dict):
        kind = "string_from_collection"
    if kind == "tuple_type" and location[-1] == "storage":
        kind = "storages"
    if kind == "string_pattern_mismatch":
        kind = "name" if location[0] == "metadata" else str(location[-1])
        kind = "checkpoint" if kind == "uri" and "checkpoint" in location else kind
    return _REMEDIES.get(kind, "correct it")


_REMEDIES = {
    "number_in_quotes": "write a plain number, without quotes or leading zeros",
    "string_type": "put it in quotes",
    "string_from_collection": "write a single value",
    "tuple_type": "write it as [1, 2, 4]",
    "storages": "write it as [float32, int8]",
    "model_type": "write its fields, indented, on the lines below",
    "uri": "write file:// and an absolute path, as in file:///data/graph.npz",
    "checkpoint": "write file:// and an absolute path, as in file:///data/model.safetensors; "
    "safetensors.torch.save_file(model.state_dict(), PATH) makes the file",
    "claimName": "give the name of an object in the service's namespace",
    "storageClassName": "give the name of a StorageClass",
    "mountPath": "write an absolute path without ':', as in /data",
    "storage": "write a size, as in 10Gi",
    "gpuMemory": "write a size, as in 40Gi",
    "resourceName": "give the name that the node advertises, as in nvidia.com/gpu",
    "name": "use lower-case letters, digits and '-', a letter first, as in digits-2",
}


def _nearest_choice(found: str, choices: list[str]) -> str:
    by_lowercase = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(found.lower(), by_lowercase, n=1)
    return f"did you mean {by_lowercase[near[0]]}?" if near else "choose one of these"


def _nearest(field: str, owner: type[BaseModel] | None) -> str:
    known = _aliases(owner) if owner is not None else {}
    if not known:
        return "remove it"
    by_lowercase = {name.lower(): name for name in known}
    # Without underscores: snake_case is the likeliest slip of who knows the Python names.
    near = difflib.get_close_matches(field.lower().replace("_", ""), by_lowercase, n=1)
    return f"did you mean `{by_lowercase[near[0]]}`?" if near else f"known fields here: {', '.join(known)}"


def _purpose(owner: type[BaseModel] | None, field: str) -> str:
    info = _aliases(owner).get(field) if owner is not None else None
    return f": {info.description}" if info is not None and info.description else ""


def _shown(value: object) -> str:
    """JSON, as YAML readers know it, and short."""
    return _short(json.dumps(value, ensure_ascii=False, default=str))


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _printable(text: str) -> str:
    """Control characters as escapes: a manifest must not steer the terminal that shows what is wrong with it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# --- pydantic's locations


def _resolve(raw: Location) -> tuple[type[BaseModel] | None, Location]:
    """The model that owns the last step of a location, and the location without pydantic's own steps.

    Pydantic adds steps that no user wrote, such as the member of a union it tried; those name no field.
    """
    model: type[BaseModel] | None = GNNService
    kept: list[int | str] = []
    owner: type[BaseModel] | None = None
    for position, step in enumerate(raw):
        known = _aliases(model) if model is not None else {}
        is_last = position == len(raw) - 1
        if isinstance(step, str) and step not in known and not is_last:
            continue
        kept.append(step)
        owner = model
        if isinstance(step, str) and step in known:
            model = _model_of(known[step])
    return owner, tuple(kept)


def _aliases(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _model_of(info: FieldInfo) -> type[BaseModel] | None:
    candidates = [a for a in (get_args(info.annotation) or (info.annotation,)) if a is not NoneType]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _path(location: Location) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{_short(step)}" for step in location).removeprefix(".")
