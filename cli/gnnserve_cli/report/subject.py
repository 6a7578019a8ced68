"""Subject of a report: one revision, from a server or from a repository."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gnnserve_api.errors import InputError, RepositoryError
from gnnserve_api.files.profile import Profile
from gnnserve_api.files.provenance import Provenance, provenance_of
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.http.live_accuracy import ObservedShare
from gnnserve_api.http.protocol import VariantsAnswer
from gnnserve_cli.client import fetch_variants, open_url
from gnnserve_cli.printable import printable_line
from gnnserve_cli.revisions import ServiceRevisions, load_services
from gnnserve_client.address import NO_ACCESS, ServerAccess

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReportSubject:
    service: str
    """Namespace and name."""
    revision: str
    recipe: str
    nodes: int
    features: int
    """Columns before pruning."""
    classes: int
    multi_label: bool
    profile: Profile
    provenance: Provenance
    device: str | None = None
    """The device that a server computes on; None: it does not say, or this is a repository."""
    in_service: Mapping[str, ObservedShare] = field(default_factory=dict)
    """Accuracy by labels that a server got, by variant."""
    graph_changes: bool = False
    """Whether those variants alone answer that follow changes of the graph."""


def printable_subject(subject: ReportSubject) -> ReportSubject:
    """The subject with every text as it may be shown: names and paths of a server, or of a repository, may hold
    anything."""
    return replace(
        subject,
        service=printable_line(subject.service),
        revision=printable_line(subject.revision),
        recipe=printable_line(subject.recipe),
        profile=_printable(subject.profile),
        provenance=_printable(subject.provenance),
        device=None if subject.device is None else printable_line(subject.device),
        in_service={printable_line(name): share for name, share in subject.in_service.items()},
    )


def _printable(made: T) -> T:
    return msgspec.convert(_each_printable(msgspec.to_builtins(made)), type(made))


def _each_printable(value: Any) -> Any:
    match value:
        case str():
            return printable_line(value)
        case dict():
            return {_each_printable(key): _each_printable(item) for key, item in value.items()}
        case list() | tuple():
            return [_each_printable(item) for item in value]
    return value


def fetch_subject(url: str, access: ServerAccess = NO_ACCESS) -> ReportSubject:
    served = fetch_variants(open_url(url, access))
    return ReportSubject(
        service=served.service,
        revision=served.revision,
        recipe=served.recipe,
        nodes=served.nodes,
        features=served.features,
        classes=len(served.classes),
        multi_label=served.multi_label,
        profile=served.profile,
        provenance=served.provenance,
        device=None if isinstance(served.device, msgspec.UnsetType) else served.device,
        in_service=_in_service(served),
        graph_changes=not isinstance(served.standing, msgspec.UnsetType),
    )


def _in_service(served: VariantsAnswer) -> dict[str, ObservedShare]:
    if isinstance(served.accuracy, msgspec.UnsetType):
        return {}
    known = {variant.name for variant in served.profile.variants}
    return {each.name: each.labels for each in served.accuracy if each.labels is not None and each.name in known}


def load_subject(
    root: Path, service: str | None, revision: str | None, *, graph_changes: bool = False
) -> ReportSubject:
    """`service`: namespace/name, or the name alone where it is the only one of that name. `revision`: its name; the
    newest without one. `graph_changes`: as of `ReportSubject`, which no revision says. No array is opened."""
    from gnnserve_worker.repository.checks import read_graph_manifest  # noqa: PLC0415 - it brings numpy

    services, problems = load_services(root)
    if not services:
        raise problems[0]
    chosen = _choose_service(root, services, service, problems)
    manifest = _choose_revision(chosen, revision, problems)
    graph = read_graph_manifest(root / chosen.namespace / chosen.service / "graphs" / manifest.graph)
    return ReportSubject(
        service=f"{chosen.namespace}/{chosen.service}",
        revision=manifest.revision,
        recipe=manifest.recipe,
        nodes=graph.nodes,
        features=len(manifest.ranking.columns),
        classes=len(graph.classes),
        multi_label=graph.multi_label,
        profile=manifest.profile,
        provenance=provenance_of(manifest, graph.source, graph.edges, graph.train_nodes, graph.schema.relations),
        graph_changes=graph_changes,
    )


def _choose_service(
    root: Path, services: list[ServiceRevisions], wanted: str | None, problems: list[RepositoryError]
) -> ServiceRevisions:
    names = {f"{found.namespace}/{found.service}": found for found in services}
    if wanted is None:
        if len(names) == 1:
            return services[0]
        raise InputError("--service", f"is not given, and {root} holds {_list(names)}", "name one of them")
    matching = [found for name, found in names.items() if wanted in {name, found.service}]
    if len(matching) == 1:
        return matching[0]
    if not matching and (damaged := [p for p in problems if f"/{wanted}/" in p.path]):
        raise damaged[0]
    problem = f"{wanted!r} is in several namespaces" if matching else f"{root} holds no {wanted!r}"
    raise InputError("--service", problem, f"name one of {_list(names)}")


def _choose_revision(
    service: ServiceRevisions, wanted: str | None, problems: list[RepositoryError]
) -> RevisionManifest:
    if wanted is None:
        return service.revisions[0]
    for revision in service.revisions:
        if revision.revision == wanted:
            return revision
    if damaged := [p for p in problems if f"/{wanted}/" in p.path]:
        raise damaged[0]
    raise InputError(
        "--revision",
        f"{service.namespace}/{service.service} has no {wanted!r}",
        f"name one of {_list([found.revision for found in service.revisions])}, the newest first",
    )


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
