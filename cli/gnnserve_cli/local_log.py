"""The log of changes of a server without a cluster: where it lies, and whose it is.

A GNNService has a uid, which its log is named by. Here the repository has one for each service, made at the first start
with `spec.updates`: who copies the repository copies the service, and another repository has another log.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

from gnnserve_api.device import size_bytes
from gnnserve_api.errors import InputError, RepositoryError, remedy_of
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.changes.address import read_address
from gnnserve_worker.changes.options import PostgresAddress, SqliteFile, UpdatesOptions
from gnnserve_worker.repository.files import make_folder, remove_file, storing, write_file
from gnnserve_worker.repository.paths import ServicePaths
from gnnserve_worker.repository.repository import Repository


def check_address(service: GNNService, uri_file: Path | None) -> None:
    """Raises InputError where the option cannot be followed, before anything is trained."""
    if uri_file is None:
        return
    if service.spec.updates is None:
        raise InputError(
            "--postgres-uri-file",
            "is given, and the manifest has no spec.updates",
            "add `updates: {log: {sqlite: {}}}` to its spec, in whose place the database then is, or leave it out",
        )
    read_address(uri_file)


def updates_of(service: GNNService, stored: Repository, uri_file: Path | None) -> UpdatesOptions | None:
    """None: the manifest asks for none."""
    updates = service.spec.updates
    if updates is None:
        return None
    paths, uid = ServicePaths(stored.folder), updates.adopt or own_uid(ServicePaths(stored.folder).updates)
    log = SqliteFile(paths.log(uid)) if uri_file is None else PostgresAddress(uri_file)
    return UpdatesOptions(log, uid, size_bytes(updates.max_delta))


def log_uid(service: GNNService, stored: Repository) -> str | None:
    """The uid that the service's log is named by; None: it has none."""
    updates = service.spec.updates
    return None if updates is None else updates.adopt or own_uid(ServicePaths(stored.folder).updates)


def forget_uid(stored: Repository) -> None:
    """Let the next server make another uid, whose log is empty."""
    place = ServicePaths(stored.folder).updates / "uid"
    with storing(place):
        remove_file(place)


def own_uid(folder: Path) -> str:
    """The uid that the folder of logs has; made where there is none."""
    place = folder / "uid"
    if not place.exists():
        make_folder(folder)
        fresh = folder / f"{uuid4()}.tmp"
        write_file(fresh, f"{uuid4()}\n".encode())
        # Linked, not renamed: of two servers that start at once, both then have the first one's.
        with storing(place), suppress(FileExistsError):
            place.hardlink_to(fresh)
        remove_file(fresh)
    try:
        return str(UUID(place.read_text(encoding="utf-8").strip()))
    except OSError as error:
        raise RepositoryError(place, f"cannot be read: {error.strerror}", remedy_of(error, "check the path")) from error
    except ValueError as error:
        remedy = f"put back what was there: the log in {folder} is named by it"
        raise RepositoryError(place, "is not the uid that was written there", remedy) from error
