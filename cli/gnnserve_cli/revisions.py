"""Every revision of every service in a repository, by its description alone.

A repository is read through its `revision.json` files, each checked as when it is served: no array is opened, so this
works on a folder that another process is serving from.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from gnnserve_api.errors import InputError, RepositoryError, remedy_of
from gnnserve_api.files.repository import RevisionManifest


class ServiceRevisions(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str
    service: str
    revisions: list[RevisionManifest]
    """Newest first."""


def load_services(root: Path, named_by: str = "URL|DIR") -> tuple[list[ServiceRevisions], list[RepositoryError]]:
    """What can be read, and what cannot: one bad file must not hide the good ones. `named_by`: the argument or option
    that names the folder."""
    # Imported here: it brings numpy, which a server's variants are shown without.
    from gnnserve_worker.repository.checks import read_revision_manifest  # noqa: PLC0415

    problems: list[RepositoryError] = []
    found: dict[tuple[str, str], list[RevisionManifest]] = {}
    for service in (service for namespace in _list_root(root, named_by) for service in _list(namespace, problems)):
        for folder in _list(service / "revisions", problems):
            # Without its last file a revision is unfinished, or no revision at all.
            if not (folder / "revision.json").is_file():
                continue
            try:
                revision = read_revision_manifest(folder)
            except RepositoryError as problem:
                problems.append(problem)
                continue
            found.setdefault((service.parent.name, service.name), []).append(revision)
    if not found and not problems:
        raise RepositoryError(
            root, "holds no published revision", f"make one with `gnnserve generate MANIFEST --repository {root}`"
        )
    services = [
        ServiceRevisions(namespace, service, sorted(revisions, key=lambda r: r.created_at, reverse=True))
        for (namespace, service), revisions in found.items()
    ]
    return services, problems


def _list_root(root: Path, named_by: str) -> list[Path]:
    try:
        return sorted(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        remedy = "give a repository folder" + ", or http://host:port" * (named_by == "URL|DIR")
        raise InputError(named_by, f"{str(root)!r} is no folder", remedy) from None
    except OSError as error:
        raise _unreadable(root, error) from error


def _list(folder: Path, problems: list[RepositoryError]) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        problems.append(_unreadable(folder, error))
        return []


def _unreadable(path: Path, error: OSError) -> RepositoryError:
    return RepositoryError(
        path, f"cannot be read: {(error.strerror or str(error)).lower()}", remedy_of(error, "check it")
    )


def find_revision(root: Path, service: str | None, revision: str) -> ServiceRevisions:
    """The service that has a revision, with that one alone. `service`: namespace/name, or the name alone; without it,
    the only one that has the revision."""
    services, problems = load_services(root, "--repository")
    known = {f"{found.namespace}/{found.service}": found for found in services}
    asked = {name: found for name, found in known.items() if service in {None, name, found.service}}
    if not asked and known:
        raise InputError("--service", f"{root} holds no {service!r}", f"name one of {', '.join(known)}")
    having = {
        name: msgspec.structs.replace(found, revisions=[one])
        for name, found in asked.items()
        for one in found.revisions
        if one.revision == revision
    }
    if len(having) == 1:
        return next(iter(having.values()))
    if having:
        raise InputError("--service", f"is not given, and {', '.join(having)} have {revision}", "name one of them")
    if damaged := [problem for problem in problems if revision in Path(problem.path).parts]:
        raise damaged[0]
    listed = ", ".join(one.revision for found in asked.values() for one in found.revisions)
    if not listed:
        raise problems[0]
    raise InputError("REVISION", f"{root} has no {revision!r}", f"name one of {listed}")
