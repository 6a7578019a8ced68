"""Rules over several fields of an object, each written once, for the API server and for pydantic.

A rule is an attribute of the type that it is about: a condition in CEL and the sentence for what breaks it. `schema.py`
writes both into the CRD; `ApiModel` computes the condition for every object that it validates (`cel.py`), and its
sentence has the values. Rules are inherited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any

from gnnserve_api.spec.cel import compiled

Sentence = Callable[[Any], str]
"""Sentence about an object that breaks a rule, with the values in it."""
_HERE_ALONE = re.compile(r"\[(?=[ ,;:])((?:[^\[\]{}]|\{[^{}]+\})*)\]")
_VALUE = re.compile(r"( ?)\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class Members:
    """Members of a list, or names in a map, for each of which a condition holds."""

    of: str
    """CEL: the list."""
    name: str
    """Name of a member in the condition, and in the sentence's values."""
    condition: str

    def first_wrong(self, subject: object) -> object:
        holds = compiled(self.condition, self.name)
        return next(one for one in compiled(self.of)(subject) if not holds(subject, one))


@dataclass(frozen=True, slots=True)
class Rule:
    cel: str
    message: str
    """Sentence about what breaks the rule: `name {self.name} must be free[: use another]`. The API server says it
    without values, which are CEL in braces, and without parts in brackets."""
    sentence: Sentence | None = None
    """Sentence of this process in place of `message`."""
    members: Members | None = None
    """Members of which values in the message may be: of the first that breaks the rule."""
    is_for_server_alone: bool = False
    message_expression: str | None = None
    """CEL whose text takes the place of `message` at the API server, with the values in it."""
    is_decisive: bool = False
    """Whether what breaks it is of no use, whatever else is put right: told before what parts break of their own."""

    def __call__(self, sentence: Sentence) -> Rule:
        """Decorate a method: the rule with the sentence that the method makes."""
        return replace(self, sentence=sentence)

    def problem(self, subject: object) -> str | None:
        """Why `subject` breaks the rule; None: it does not."""
        if self.is_for_server_alone or compiled(self.cel)(subject):
            return None
        if self.sentence is not None:
            return self.sentence(subject)
        named = {} if self.members is None else {self.members.name: self.members.first_wrong(subject)}

        def told(value: re.Match[str]) -> str:
            return f"{value[1]}{_in_lists(compiled(value[2], *named)(subject, *named.values()))}"

        return _VALUE.sub(told, _HERE_ALONE.sub(r"\1", self.message))

    def as_validation(self) -> dict[str, str]:
        """The rule in the form that a CRD has."""
        expression = {} if self.message_expression is None else {"messageExpression": self.message_expression}
        return {"rule": self.cel, "message": _VALUE.sub("", _HERE_ALONE.sub("", self.message)), **expression}


def _in_lists(value: Any) -> Any:
    """The value as a manifest has it, with lists in place of tuples."""
    return [_in_lists(each) for each in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class RuleTable:
    """Rules of a model that are declared elsewhere, in their order."""

    rules: tuple[Rule, ...]


def rules_in(*modules: ModuleType) -> RuleTable:
    """Rules that modules declare outside of any type, for a type that has the sections of all of them."""
    return RuleTable(tuple(each for module in modules for each in vars(module).values() if isinstance(each, Rule)))


def rule(cel: str, message: str, members: Members | None = None) -> Rule:
    """A rule; as the decorator of a method, one whose sentence the method makes."""
    return Rule(cel, message, members=members)


def rule_of_each(of: str, name: str, condition: str, message: str, unless: str | None = None) -> Rule:
    """A rule of each member of a list, or name in a map. `unless`: CEL of objects that it is not about, which are those
    without the list where nothing is given."""
    unless = f"!has({of})" if unless is None else unless
    return rule(f"{unless} || {of}.all({name}, {condition})", message, Members(of, name, condition))


def all_empty(*paths: str) -> str:
    """CEL: each of the lists and maps is empty, or not given."""
    return " && ".join(f"(!has({path}) || size({path}) == 0)" for path in paths)


def decisive(rule: Rule) -> Rule:
    """The rule as one that is told first."""
    return replace(rule, is_decisive=True)


def server_rule(cel: str, message: str, message_expression: str | None = None) -> Rule:
    """A rule for the API server alone: it compares with the stored object (`oldSelf`), or pydantic has its pattern."""
    return Rule(cel, message, is_for_server_alone=True, message_expression=message_expression)


@cache
def rules_of(model: type) -> tuple[Rule, ...]:
    """Rules of the model, those of its bases first, each in the order in which it was declared."""
    return tuple(_declared(model))


@cache
def told_rules_of(model: type) -> tuple[Rule, ...]:
    """Rules of the model in the order in which they are looked at: decisive ones first."""
    return tuple(sorted(rules_of(model), key=lambda rule: not rule.is_decisive))


def _declared(model: type) -> Iterator[Rule]:
    for base in reversed(model.__mro__):
        for value in vars(base).values():
            if isinstance(value, Rule):
                yield value
            elif isinstance(value, RuleTable):
                yield from value.rules


def validations(*rules: tuple[str, str]) -> dict[str, Any]:
    """Rules over a single value in CEL, each with its message, as part of a field's schema."""
    return {"x-kubernetes-validations": [{"rule": cel, "message": message} for cel, message in rules]}
