"""The audience of a spec's fields: who is handed a field, and so what another value of it makes anew.

A field says it in its type, `field: Annotated[Type, Audience.PODS]`, and speaks for all that is below it; a field below
may say otherwise. Where sections of one type have several audiences, the class says it: `default_audience`. What Jobs
and workers are handed, what a recipe is made of and what replaces pods follows from it, by `selection`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Flag, auto
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

Selection = dict[str, Any]
"""Fields by name, in the form of pydantic's `include`: True where all of a field is selected, else what is of it."""


class Audience(Flag):
    """Each member: who is handed the field, and the effect of another value."""

    REVISION = auto()
    """Generation, which makes a revision of it: another value makes another revision."""
    GENERATION = auto()
    """Generation, where no revision depends on it: another value makes another Job, which finds the revision."""
    RETURN = auto()
    """The Job that goes back to the revision of `spec.revision`."""
    EMBEDDINGS = auto()
    """The Job that makes embeddings."""
    PODS = auto()
    """Worker pods, as their template: another value replaces them."""
    WORKERS = auto()
    """Workers, which follow it while they answer: nothing is replaced."""
    OPERATOR = auto()
    """The operator alone."""


_Tree = Mapping[str, "Audience | _Tree"]


@cache
def selection(model: type[BaseModel], audience: Audience) -> Selection:
    """Fields of the model, under their Python names, that are handed to one of `audience` at least."""
    found = _select(_tree(model, _default_of(model), model.__name__), audience)
    if isinstance(found, dict):
        return found
    return dict.fromkeys(model.model_fields, True) if found else {}


def audiences_of(model: type[BaseModel]) -> Iterator[tuple[str, Audience]]:
    """Fields of the model with their audience, by dotted Python name; a field in parts is told by its parts."""
    yield from _leaves(_tree(model, _default_of(model), model.__name__), "")


def parts_for(spec: BaseModel, audience: Audience) -> dict[str, Any]:
    """The spec's fields for that audience, under the names of a manifest. Defaults are left out, so that a release
    which knows a new field says the same of a spec without it as its predecessor."""
    selected = selection(type(spec), audience)
    parts = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=selected)
    return without_empty_parts(parts, selected)


def without_empty_parts(document: Mapping[str, Any], selected: Selection) -> dict[str, Any]:
    """A selection's fields as they were dumped, by alias, without sections of which nothing was dumped and not all is
    selected. Where all of a section is, an empty one may have been written on purpose, as in `links: {}`."""
    kept = dict(document)
    for name, below in selected.items():
        alias = to_camel(name)
        if isinstance(below, dict) and isinstance(kept.get(alias), Mapping):
            kept[alias] = without_empty_parts(kept[alias], below)
            if not kept[alias]:
                del kept[alias]
    return kept


def _tree(model: type[BaseModel], above: Audience | None, path: str) -> _Tree:
    return {name: _node(field, above, f"{path}.{name}") for name, field in model.model_fields.items()}


def _node(field: FieldInfo, above: Audience | None, path: str) -> Audience | _Tree:
    said = next((each for each in field.metadata if isinstance(each, Audience)), None)
    trees = [
        _tree(section, said or _default_of(section) or above, path)
        for section in _sections(field.annotation)
        if section.model_fields
    ]
    if not trees:
        if (said := said or above) is None:
            raise TypeError(f"{path} does not say for whom it is: write Annotated[..., Audience.X] (see {__name__})")
        return said
    if len(trees) == 1 and _is_one_section(field.annotation):
        return trees[0]
    # A selection has no form for a part of each member of a list.
    audiences = {audience for tree in trees for _, audience in _leaves(tree, "")}
    if len(audiences) > 1:
        raise TypeError(f"{path}: the fields of a list's members, or of a union's, must all be for the same audience")
    return audiences.pop()


def _select(node: Audience | _Tree, audience: Audience) -> Selection | bool:
    if isinstance(node, Audience):
        return bool(node & audience)
    found = {name: _select(below, audience) for name, below in node.items()}
    chosen = {name: part for name, part in found.items() if part}
    is_whole = len(chosen) == len(found) and all(part is True for part in chosen.values())
    return is_whole or chosen


def _leaves(tree: _Tree, prefix: str) -> Iterator[tuple[str, Audience]]:
    for name, node in tree.items():
        if isinstance(node, Audience):
            yield f"{prefix}{name}", node
        else:
            yield from _leaves(node, f"{prefix}{name}.")


def _default_of(section: type[BaseModel]) -> Audience | None:
    return getattr(section, "default_audience", None)


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The models of an annotation, however they are wrapped."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in _sections(part)]


def _is_one_section(annotation: Any) -> bool:
    """Whether the annotation is a model, or a model and None."""
    parts = [part for part in get_args(annotation) if part is not type(None)] or [annotation]
    return len(parts) == 1 and isinstance(parts[0], type) and issubclass(parts[0], BaseModel)
