"""Turns a YAML file into a `GNNService`, or into one error that lists everything wrong with it.

Reads as the API server reads: no conversion of strings to numbers, no Python names of fields. A manifest that
passes here is one that `kubectl apply` takes. What the fields mean is in `spec/`, how YAML is read in
`manifest_yaml.py`, how a wrong field is described in `manifest_problems.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from gnnserve_api.errors import InputError, remedy_of
from gnnserve_api.manifest_problems import describe, is_said_elsewhere
from gnnserve_api.manifest_yaml import FLATTEN, read_yaml
from gnnserve_api.spec.cascade import unknown_stages
from gnnserve_api.spec.fields import ANY_CONTEXT
from gnnserve_api.spec.made_variants import made_variants
from gnnserve_api.spec.paths import BASE_CONTEXT, ManifestFolder, PathBase
from gnnserve_api.spec.pool import POOL_KIND, GNNWorkerPool
from gnnserve_api.spec.rules import rules_of
from gnnserve_api.spec.service import API_VERSION, KIND, GNNService, GNNServiceSpec
from gnnserve_api.wording import printable, shown

_EXAMPLE = "examples/digits.yaml is a complete manifest"
_MOST_BYTES = 2**20
STANDARD_INPUT = Path("-")
"""Stands for standard input where a manifest is named."""


@dataclass(frozen=True, slots=True)
class Document:
    """One of those that `---` separates in a text."""

    where: str
    """The file or stream, and the document's place in it, for messages."""
    content: object
    """The document as YAML parses it."""

    @property
    def is_pool(self) -> bool:
        """Whether it says to be a GNNWorkerPool, which `parse_pool` reads."""
        return isinstance(self.content, dict) and self.content.get("kind") == POOL_KIND

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
    return parse_manifest(read_text(path), name_of(path), folder_of(path))


def name_of(path: Path) -> str:
    """The name of a manifest in messages."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def folder_of(path: Path) -> ManifestFolder:
    """Where relative paths of a manifest begin: in the folder of its file, by the name that the file was given by. Of a
    text that comes by a pipe, `path` standard input or not a file, that is the working directory."""
    folder = Path.cwd() if path == STANDARD_INPUT or not path.is_file() else path.absolute().parent
    try:
        return ManifestFolder(folder, Path.home())
    except RuntimeError:  # neither HOME nor an entry in the list of users
        return ManifestFolder(folder, None)


def read_text(path: Path) -> str:
    if path == STANDARD_INPUT:
        if sys.stdin is None:  # started with it closed, as by `<&-`
            raise InputError(name_of(path), "is closed", "pipe a manifest to it, or name a file")
        return read_text_from(sys.stdin.buffer, name_of(path))
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


def parse_manifest(text: str, where: str, base: PathBase | None = None) -> GNNService:
    """`where` names the text in messages: a path, or `standard input`. `base`: where its relative paths begin; None: no
    file that it names will be opened."""
    documents = split_documents(text, where)
    if len(documents) > 1:
        raise InputError(
            where, f"holds {len(documents)} documents, expected one GNNService", "put each into a file of its own"
        )
    return parse_document(documents[0], base)


def split_documents(text: str, where: str) -> list[Document]:
    """The documents of a text: at least one; empty ones do not count."""
    if len(text) > _MOST_BYTES or len(text.encode(errors="surrogatepass")) > _MOST_BYTES:
        raise _too_long(where)
    contents = read_yaml(text, where)
    if not contents:
        raise InputError(where, "is empty, expected a GNNService manifest", _EXAMPLE)
    if len(contents) == 1:
        return [Document(where, contents[0])]
    return [Document(f"{where}, document {number}", content) for number, content in enumerate(contents, start=1)]


def parse_document(given: Document, base: PathBase | None = None) -> GNNService:
    """The service that the document describes. `base`: where its relative paths begin."""
    where = given.where
    document, as_json = _mapping(given)
    problems = list(_identity_problems(document))
    if document.get("kind", KIND) != KIND:
        raise _input_error(where, problems)  # the fields of another kind are not ours to judge
    try:
        # Through JSON, so that strict mode still takes enums from strings and tuples from lists.
        service = GNNService.model_validate_json(
            as_json, strict=True, by_alias=True, by_name=False, context={BASE_CONTEXT: base}
        )
    except ValidationError as error:
        details = error.errors()
        if details[0]["type"] == "json_invalid":
            raise InputError(where, f"holds what JSON cannot: {details[0]['msg']}", FLATTEN) from None
        problems += [describe(detail) for detail in details if not is_said_elsewhere(detail)]
        is_whole_seen = any(detail["loc"] == ("spec",) for detail in details)
        raise _input_error(where, [*(() if is_whole_seen else _decisive_problems(as_json, base)), *problems]) from None
    problems = [*_unknown_stages(service.spec)]
    problems += [*_impossible_variants(service.spec), *_fixed_variants(service.spec)]
    problems += [*_no_embeddings(service.spec)]
    if problems:
        raise _input_error(where, problems)
    return service


def parse_pool(given: Document) -> GNNWorkerPool:
    """As `parse_document`, of a GNNWorkerPool."""
    _, as_json = _mapping(given)
    try:
        return GNNWorkerPool.model_validate_json(as_json, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = [describe(detail) for detail in error.errors() if not is_said_elsewhere(detail)]
        raise _input_error(given.where, problems or [str(error)]) from None


def _decisive_problems(as_json: str, base: PathBase | None) -> Iterator[str]:
    """Rules over the whole spec that no other field cures, which a rule over a part of it would hide: pydantic looks at
    the whole once its parts are right. None where a part cannot be read."""
    with suppress(ValidationError):
        spec = GNNService.model_validate_json(
            as_json, strict=True, by_alias=True, by_name=False, context={BASE_CONTEXT: base, ANY_CONTEXT: True}
        ).spec
        broken = (rule.problem(spec) for rule in rules_of(type(spec)) if rule.is_decisive)
        yield from (f"spec: {problem}" for problem in broken if problem is not None)


def _unknown_stages(spec: GNNServiceSpec) -> Iterator[str]:
    """Stages of cascades that are no variants, found before the graph is read. In a cluster generation tells them."""
    names = made_variants(spec).stage_names()
    for field, stage in unknown_stages(spec.variants.cascades, names):
        yield f"{field}: {stage} is none of the variants that are made; choose from {', '.join(names)}"


def _impossible_variants(spec: GNNServiceSpec) -> Iterator[str]:
    """Variants that cannot be made, found before anything is trained. The operator tells them by a condition, so that
    stored objects stay readable."""
    impossible = spec.impossible_variants()
    if impossible:
        yield (
            f"{_named_in(spec)}: names {', '.join(impossible)}, which spec.variants does not generate; name some of "
            f"{', '.join(spec.possible_variants())}, or change spec.variants.pruning.factors, storage, projection or "
            "given"
        )


def _fixed_variants(spec: GNNServiceSpec) -> Iterator[str]:
    """Variants that workers do not choose while the graph changes. In a cluster a condition tells them, too."""
    following = spec.following_variants()
    if not following:
        yield (
            "spec.updates: none of spec.variants follows changes of the graph; add variants.oneRow with hops 0, or use "
            "a model.architecture that samples neighbours"
        )
    elif fixed := spec.fixed_variants():
        yield (
            f"{_named_in(spec)}: names {', '.join(fixed)}, which cannot follow changes of the graph, spec.updates; "
            f"name some of {', '.join(following)}, or leave one of the two out"
        )


def _no_embeddings(spec: GNNServiceSpec) -> Iterator[str]:
    """Embeddings of networks that have none to return, in a cluster told by a condition once the revision is there;
    or of a variant that is not made, gives none, or does not follow changes."""
    has_own = spec.model.is_program or spec.variants.given or spec.task.asked().reads_pairs
    if spec.embeddings is not None and not has_own and len(spec.model.fanouts) == 1:
        yield (
            f"spec.embeddings: model.fanouts {list(spec.model.fanouts)} of {spec.model.architecture} has one layer, "
            "and so no hidden layer to return; give it two layers or more, or leave spec.embeddings out"
        )
    elif (why := spec.unfit_for_embeddings()) is not None:
        yield f"spec.embeddings: {why}"


def _named_in(spec: GNNServiceSpec) -> str:
    return f"spec.routing.{'variant' if spec.routing.variant is not None else 'weights'}"


def _input_error(where: str, problems: list[str]) -> InputError:
    heading = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return InputError(where, "\n  ".join([heading, *map(printable, problems)]))


def _too_long(where: str) -> InputError:
    return InputError(where, "is longer than 1 MiB", f"give a manifest, not a graph; {_EXAMPLE}")


def _mapping(given: Document) -> tuple[dict[str, Any], str]:
    where, document = given.where, given.content
    if not isinstance(document, dict):
        raise InputError(
            where,
            f"holds {shown(document)}, expected a mapping with apiVersion, kind, metadata and spec",
            "put one manifest into a file, without a list around it" if isinstance(document, list) else _EXAMPLE,
        )
    try:
        return document, json.dumps(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            where, f"holds what JSON cannot: {error}", "remove tags such as !!binary and aliases that hold themselves"
        ) from None


def _identity_problems(document: Mapping[str, Any]) -> Iterator[str]:
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if field not in document:
            yield f"{field}: missing; add `{field}: {expected}`"
        elif document[field] != expected:
            yield (
                f"{field}: {shown(document[field])} is not served by this gnnserve, expected {expected}; "
                f"write `{field}: {expected}`, or pass a {KIND} manifest"
            )
