"""Reading YAML as the API server does, within limits.

Values are those that JSON has, a field is set once, and a text may not expand to more than a manifest needs.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from gnnserve_api.errors import InputError
from gnnserve_api.wording import printable, short

_MOST_VALUES = 100_000
"""Most values of a document after aliases are followed: a few hundred bytes of aliases of aliases can stand for
billions."""
_DEEPEST = 64
_MOST_DIGITS = 100
FLATTEN = "a manifest has about six levels; check its brackets and its indentation"


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
        problem = f"{printable(surrogate)} is half a character, which no UTF-8 text has"
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
            raise _ExcessError(f"is nested more than {_DEEPEST} levels deep", FLATTEN)
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
                problem = f"field `{short(key.value)}` is already set on line {seen[key.value]}; keep one of them"
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


def read_yaml(text: str, where: str) -> list[object]:
    """The documents of a text, without empty ones. `where` names the text in messages."""
    try:
        return [d for d in yaml.load_all(text, Loader=_Loader) if d is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = printable(str(error.problem or error))
        raise InputError(f"{where}{line}", f"not valid YAML: {problem}", "correct that line") from None
    except _ExcessError as error:
        raise InputError(where, error.problem, error.remedy) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(where, f"not valid YAML: {error}", "give a YAML manifest in UTF-8") from None
    except (KeyError, AttributeError, TypeError):
        # PyYAML converts what an explicit tag names without looking whether the text fits.
        raise InputError(where, "not valid YAML: a tag does not fit its value", "remove tags such as !!bool") from None
    except RecursionError:
        raise InputError(where, "is nested too deeply", FLATTEN) from None
