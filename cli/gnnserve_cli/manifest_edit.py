"""One field of a manifest's spec changed in the text of its file: comments, order and everything else stay.

The edited text is read again before it is kept, so a text that this module does not understand is refused, not broken.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import yaml

from gnnserve_api.errors import InputError, remedy_of
from gnnserve_api.manifest import parse_manifest, read_text


def write_revision(path: Path, revision: str | None) -> None:
    """Set spec.revision in a manifest's file; None: take it away."""
    before = read_text(path)
    after = with_revision(before, revision, str(path))
    if after == before:
        return
    # In its place at once: a file that is half written would be no manifest.
    target = path.resolve()
    fresh = target.with_name(f"{target.name}.tmp")
    try:
        fresh.write_text(after, encoding="utf-8", newline="")
        fresh.chmod(target.stat().st_mode)
        fresh.replace(target)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        problem = f"cannot be written: {error.strerror or error}; it is as it was"
        raise InputError(str(path), problem, remedy_of(error, f"set {_said(revision)} by hand")) from error


def with_revision(text: str, revision: str | None, where: str) -> str:
    """The text of a manifest with another spec.revision. `where` names it in messages."""
    wanted = parse_manifest(text, where)
    wanted = wanted.model_copy(update={"spec": wanted.spec.model_copy(update={"revision": revision})})
    by_hand = f"set {_said(revision)} by hand"
    try:
        document = yaml.compose(text, yaml.SafeLoader)
        assert isinstance(document, yaml.MappingNode)  # noqa: S101
        spec = next(value for key, value in document.value if key.value == "spec")
        edited = _edited(text, spec, revision)
        if parse_manifest(edited, where).model_dump() == wanted.model_dump():
            return edited
    except yaml.YAMLError:
        pass
    except InputError as error:
        # As where routing names a variant that the manifest's own model does not have.
        problem = f"would be refused with {_said(revision)}: {error.problem}"
        raise InputError(where, problem, f"correct that first, or {by_hand}") from error
    raise InputError(where, "is not written as this command can change it", by_hand)


def _said(revision: str | None) -> str:
    return "no spec.revision" if revision is None else f'spec.revision: "{revision}"'


def _edited(text: str, spec: yaml.MappingNode, revision: str | None) -> str:
    present = next(((key, value) for key, value in spec.value if key.value == "revision"), None)
    if present is None:
        return text if revision is None else _with_field(text, spec, revision)
    key, value = present
    if revision is not None:
        # Quoted: a name may be all digits.
        return f"{text[: value.start_mark.index]}{json.dumps(revision)}{text[value.end_mark.index :]}"
    if spec.flow_style:
        return _without_member(text, key.start_mark.index, value.end_mark.index)
    start = key.start_mark.index - key.start_mark.column
    end = text.find("\n", value.end_mark.index)
    return text[:start] + ("" if end < 0 else text[end + 1 :])


def _with_field(text: str, spec: yaml.MappingNode, revision: str) -> str:
    """Put the field before the others of the spec, in the style that they have."""
    first, _ = spec.value[0]
    at, named = first.start_mark.index, f"revision: {json.dumps(revision)}"
    if spec.flow_style:
        return f"{text[:at]}{_quoted_as(text[at], named)}, {text[at:]}"
    return f"{text[:at]}{named}\n{' ' * first.start_mark.column}{text[at:]}"


def _quoted_as(first: str, named: str) -> str:
    """JSON quotes the names of fields."""
    return f'"revision"{named.removeprefix("revision")}' if first == '"' else named


def _without_member(text: str, start: int, end: int) -> str:
    """Take a member of a flow mapping away, with the comma behind it or else the one before."""
    behind = text[end:].lstrip()
    if behind.startswith(","):
        return text[:start] + behind[1:].lstrip()
    return text[:start].rstrip().removesuffix(",") + text[end:]
