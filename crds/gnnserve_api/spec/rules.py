"""Rules over several fields of an object, declared once for the API server and for pydantic.

A rule is a method of the type that it is about. Its decorator `@rule` holds the same condition in CEL: `schema.py`
writes that into the CRD, and `ApiModel` calls the method for every object that it validates. Rules are inherited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

Check = Callable[[Any], bool | str]
"""True where the rule holds, False where it does not; or a text, which says with the values that it does not."""


@dataclass(frozen=True, slots=True)
class Rule:
    cel: str
    message: str
    check: Check | None = None
    """The condition in Python; None: only the API server checks it."""
    message_expression: str | None = None
    """CEL whose text takes the place of `message`, with the values in it."""

    def problem(self, subject: object) -> str | None:
        """Why `subject` breaks the rule; None: it does not."""
        found = True if self.check is None else self.check(subject)
        if isinstance(found, str):
            return found
        return None if found else self.message

    def as_validation(self) -> dict[str, str]:
        """The rule in the form that a CRD has."""
        validation = {"rule": self.cel, "message": self.message}
        return (
            validation
            if self.message_expression is None
            else {**validation, "messageExpression": self.message_expression}
        )


@dataclass(frozen=True, slots=True)
class RuleTable:
    """Rules of a model that are declared elsewhere, in their order."""

    rules: tuple[Rule, ...]


def rule(cel: str, message: str) -> Callable[[Check], Rule]:
    """Decorator of a method of an `ApiModel` that is the same condition in Python."""
    return lambda check: Rule(cel, message, check)


def server_rule(cel: str, message: str, message_expression: str | None = None) -> Rule:
    """A rule for the API server alone: it compares with the stored object (`oldSelf`), or pydantic has its pattern."""
    return Rule(cel, message, message_expression=message_expression)


@cache
def rules_of(model: type) -> tuple[Rule, ...]:
    """Rules of the model, those of its bases first, each in the order in which it was declared."""
    return tuple(_declared(model))


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
