"""Rules in CEL, the language of conditions in a CRD, computed for our own objects.

A rule is written once. The API server holds its text against a manifest, and `compiled` makes a Python function of the
same text for the parsed manifest. Only what rules use of CEL is known; anything else is an error.

The text becomes Python's source, since both languages have the same operators, in the same order of precedence, but for
`!`: it binds closest in CEL, and in rules it stands before a call, a field or a group alone. A list or map that a
manifest leaves out is absent at the API server and empty in our objects; a rule asks for `has` and `size`, and says the
same of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from gnnserve_api.quantity import parse_quantity

_WORD = re.compile(r"r?'[^']*'|\d+(?:\.\d+)?|\w+|&&|\|\||[=!<>]=|\S")
_CAPITAL = re.compile("[A-Z]")
_OPERATORS = {
    **{same: f" {same} " for same in ("==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "%", "in")},
    "&&": " and ", "||": " or ", "!": " not ",
    "/": " // ",  # What rules divide are whole numbers above 0.
}  # fmt: skip
_CALLS = {
    "has": "({0} is not None)",
    "size": "len({0})",
    "string": "str({0})",
    "double": "float({0})",
    "quantity": "quantity({0})",
    "isQuantity": "(quantity({0}) is not None)",
    "add": "({0} + {1})",
    "compareTo": "({0} - {1})",
    "contains": "({1} in {0})",
    "startsWith": "{0}.startswith({1})",
    "matches": "(search({1}, {0}) is not None)",
    "all": "all({2} for {1} in {0})",
    "exists": "any({2} for {1} in {0})",
    "exists_one": "(sum({2} for {1} in {0}) == 1)",
    "filter": "[{1} for {1} in {0} if {2}]",
}
"""Functions, methods and macros of CEL in Python's words; the first argument of a method is its object."""
_KNOWN: dict[str, Any] = {"quantity": parse_quantity, "search": re.search}
_ENDS = {")", "]", ",", ":"}


@cache
def compiled(cel: str, *names: str) -> Callable[..., Any]:
    """The text as a function of `self` and of other names in it, in their order. KeyError, SyntaxError: it has a word
    that no rule had before."""
    words = _WORD.findall(cel)[::-1]
    source = _expression(words)
    if words:
        raise SyntaxError(f"{words[-1]} ends nothing in {cel}")
    return cast(Callable[..., Any], eval(f"lambda {', '.join(('self', *names))}: {source}", _KNOWN))  # noqa: S307 - ours


def _expression(words: list[str]) -> str:
    """Python's source of the words, the next of them last, up to the end of their group."""
    parts: list[str] = []
    while words and words[-1] not in _ENDS:
        word = words.pop()
        if word == "?":
            (chosen,) = _arguments(words, ":")
            return f"({chosen} if {''.join(parts)} else {_expression(words)})"
        parts.append(_OPERATORS.get(word) or _operand(word, words))
    return "".join(parts)


def _operand(word: str, words: list[str]) -> str:
    """Source of a value, with the fields, calls and places that are asked of it."""
    if word == "(":
        source = f"({_arguments(words, ')')[0]})"
    elif word == "[":
        source = f"({''.join(f'{each}, ' for each in _arguments(words, ']'))})"
    elif not re.match(r"\w|r?'", word):
        raise SyntaxError(f"{word} is in no rule")
    else:
        source = _call(word, [], words) if words[-1:] == ["("] else {"true": "True", "false": "False"}.get(word, word)
    while words[-1:] in (["."], ["["]):
        if words.pop() == "[":
            source = f"{source}[{_arguments(words, ']')[0]}]"
        else:
            name = words.pop()
            source = _call(name, [source], words) if words[-1:] == ["("] else f"{source}.{_CAPITAL.sub(_lowered, name)}"
    return source


def _call(name: str, of: list[str], words: list[str]) -> str:
    words.pop()
    return _CALLS[name].format(*of, *_arguments(words, ")"))


def _lowered(capital: re.Match[str]) -> str:
    return f"_{capital[0].lower()}"


def _arguments(words: list[str], end: str) -> list[str]:
    found = []
    while words[-1] != end:
        found.append(_expression(words))
        if words[-1] == ",":
            words.pop()
    words.pop()
    return found
