"""A kubeconfig's current context as the connection over which kopf and our own requests reach the API server.

It is read as kubectl reads it: the files of a list are merged, the first that has a name wins, and relative paths begin
at the file that has them. A field that would change where requests go or as whom, and is not supported, is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import kopf
import msgspec
import yaml

from gnnserve_operator.exec_credentials import ExecCommand, ExecCredential, LoginError, run_command


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _User(msgspec.Struct, rename="kebab"):
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    username: str | None = None
    password: str | None = None
    exec: ExecCommand | None = None
    auth_provider: dict[str, Any] | None = None
    as_user: str | None = msgspec.field(name="as", default=None)


class _Context(msgspec.Struct):
    cluster: str
    user: str = ""


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct):
    name: str
    context: _Context


class _File(msgspec.Struct, rename="kebab"):
    """A kubeconfig's fields that say where the API server is and who asks; others are skipped."""

    current_context: str | None = None
    clusters: tuple[_NamedCluster, ...] | None = None
    users: tuple[_NamedUser, ...] | None = None
    contexts: tuple[_NamedContext, ...] | None = None


@dataclass(frozen=True, slots=True)
class KubeconfigConnection:
    connection: kopf.ConnectionInfo
    may_change: bool
    """Whether the token comes from a file, which another program may write anew."""


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


Named = TypeVar("Named", bound=_HasName)


async def read_kubeconfig(paths: Sequence[Path]) -> KubeconfigConnection:
    """Read the connection of the current context. Raises LoginError, OSError where a file cannot be read."""
    files = [(path, _read(path)) for path in paths if path.exists()]
    if not files:
        raise LoginError(f"there is no {' and no '.join(map(str, paths))}")
    current = next((file.current_context for _, file in files if file.current_context), None)
    if current is None:
        raise LoginError(f"{files[0][0]} sets no current-context; choose one by `kubectl config use-context`")
    _, context = _find("contexts", current, ((path, file.contexts) for path, file in files))
    of_cluster, named = _find("clusters", context.context.cluster, ((path, file.clusters) for path, file in files))
    user, of_user = None, of_cluster
    if context.context.user:
        of_user, found = _find("users", context.context.user, ((path, file.users) for path, file in files))
        user = found.user
    return await _connection(named.cluster, of_cluster.parent, user or _User(), of_user.parent)


def _read(path: Path) -> _File:
    try:
        return msgspec.convert(yaml.safe_load(path.read_bytes()) or {}, _File)
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise LoginError(f"{path} is not a kubeconfig: {error}") from error


def _find(
    field: str, name: str, files: Iterable[tuple[Path, tuple[Named, ...] | None]]
) -> tuple[Path, Named]:  # fmt: skip
    for path, entries in files:
        for entry in entries or ():
            if entry.name == name:
                return path, entry
    raise LoginError(f"the kubeconfig's {field} have none of the name {name!r}, which its current context needs")


async def _connection(cluster: _Cluster, cluster_folder: Path, user: _User, user_folder: Path) -> KubeconfigConnection:
    refused = {
        "clusters[].cluster.tls-server-name": cluster.tls_server_name,
        "users[].user.as": user.as_user,
        "users[].user.auth-provider": user.auth_provider,
    }
    for field, value in refused.items():
        if value:
            raise LoginError(f"the kubeconfig sets {field}, which the operator does not support; use a token or exec")
    printed = ExecCredential()
    token = _token_of(user, user_folder)
    if user.exec is not None and token is None:
        printed = await run_command(user.exec, user_folder)
        token = printed.token
    certificate_data = printed.client_certificate_data or user.client_certificate_data
    key_data = printed.client_key_data or user.client_key_data
    authority_data = cluster.certificate_authority_data
    connection = kopf.ConnectionInfo(
        server=cluster.server.rstrip("/"),
        ca_data=authority_data,
        ca_path=None if authority_data else _path(cluster.certificate_authority, cluster_folder),
        insecure=cluster.insecure_skip_tls_verify,
        token=token,
        username=user.username,
        password=user.password,
        certificate_data=certificate_data,
        certificate_path=None if certificate_data else _path(user.client_certificate, user_folder),
        private_key_data=key_data,
        private_key_path=None if key_data else _path(user.client_key, user_folder),
        proxy_url=cluster.proxy_url,
        trust_env=True,
        expiration=printed.expiration_timestamp,
    )
    return KubeconfigConnection(connection, may_change=bool(user.token_file))


def _token_of(user: _User, folder: Path) -> str | None:
    path = _path(user.token_file, folder)
    token = user.token if path is None else path.read_text().strip()
    return token or None


def _path(named: str | None, folder: Path) -> Path | None:
    """The file, where one is named; `folder` is that of the kubeconfig."""
    return folder / named if named else None


def paths_of(environ_value: str) -> list[Path]:
    """The files that the variable KUBECONFIG names; empty: none."""
    return [Path(name).expanduser() for name in environ_value.split(os.pathsep) if name]
