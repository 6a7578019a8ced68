"""Docstrings of attributes: the strings below the fields of a class and below the members of an enum.

Python keeps them in the source alone. Only the CRD, docs/manifest.md and the message about a missing field need them,
so that importing the types reads no source.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise


def attribute_docstrings(owner: type) -> dict[str, str]:
    """Docstrings of the attributes of a class and of those it inherits, by the attribute's name.

    Attributes without one are left out; so is every attribute of a class whose source is not at hand.
    """
    found: dict[str, str] = {}
    for each in reversed(owner.__mro__):
        found |= _own_docstrings(each)
    return found


@cache
def _own_docstrings(owner: type) -> dict[str, str]:
    try:
        source = inspect.getsource(owner)
    except (OSError, TypeError):  # compiled in, or installed without its source
        return {}
    (definition,) = ast.parse(textwrap.dedent(source)).body
    if not isinstance(definition, ast.ClassDef):
        return {}
    found = {}
    for statement, following in pairwise(definition.body):
        name, text = _assigned_name(statement), _text(following)
        if name is not None and text is not None:
            found[name] = inspect.cleandoc(text)
    return found


def _assigned_name(statement: ast.stmt) -> str | None:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return None


def _text(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
    return None
