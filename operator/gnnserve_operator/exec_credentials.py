"""Credentials that a command prints, as kubeconfigs name one for clouds (Kubernetes' client.authentication.k8s.io)."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import datetime
from pathlib import Path

import msgspec

from gnnserve_api.decoding import decode
from gnnserve_api.errors import ResourceError

LIMIT_S = 60.0
"""Seconds that the command may take: nothing answers it, so one that asks a question would never end."""


class LoginError(ResourceError):
    """Credentials or a server's address are missing, or cannot be used."""


class Variable(msgspec.Struct, frozen=True):
    name: str
    value: str


class ExecCommand(msgspec.Struct, frozen=True, rename="camel"):
    """The field `exec` of a kubeconfig's user."""

    api_version: str
    command: str
    args: tuple[str, ...] | None = None
    env: tuple[Variable, ...] | None = None
    install_hint: str = ""


class ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    """The field `status` of what the command prints."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class _CredentialOutput(msgspec.Struct, rename="camel"):
    api_version: str
    status: ExecCredential | None = None


async def run_command(of: ExecCommand, folder: Path) -> ExecCredential:
    """Run the command. `folder`: where its path begins, if it is a relative one. Raises LoginError."""
    named = str(folder / of.command) if os.sep in of.command else of.command
    told = {"apiVersion": of.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    variables = {each.name: each.value for each in of.env or ()} | {"KUBERNETES_EXEC_INFO": json.dumps(told)}
    try:
        process = await asyncio.create_subprocess_exec(
            named, *(of.args or ()), env=os.environ | variables,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        hint = f"; {of.install_hint.strip()}" if of.install_hint else ""
        raise LoginError(
            f"{named} of the kubeconfig's users[].user.exec cannot be run: {error.strerror}{hint}"
        ) from error
    try:
        async with asyncio.timeout(LIMIT_S):
            printed, complaints = await process.communicate()
    except TimeoutError as error:
        raise LoginError(
            f"{named} has printed no credentials for {LIMIT_S:.0f} s; it must not ask for input"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        words = complaints.decode(errors="replace").strip()
        raise LoginError(f"{named} ended with exit code {process.returncode}: {words}")
    return _read(named, of, printed)


def _read(named: str, of: ExecCommand, printed: bytes) -> ExecCredential:
    try:
        found = decode(printed, _CredentialOutput)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LoginError(f"{named} printed no ExecCredential: {error}") from error
    if found.api_version != of.api_version:
        raise LoginError(
            f"{named} printed an ExecCredential of {found.api_version}, and the kubeconfig expects {of.api_version}"
        )
    status = found.status or ExecCredential()
    if not status.token and not (status.client_certificate_data and status.client_key_data):
        raise LoginError(
            f"{named} printed neither status.token nor status.clientCertificateData with status.clientKeyData"
        )
    return status
