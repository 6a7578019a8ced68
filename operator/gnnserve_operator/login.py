"""Connection to the API server, the same for kopf's watches and for the operator's own requests.

KUBECONFIG says where it is, else the pod's ServiceAccount, else ~/.kube/config. A ServiceAccount's token is rotated:
our own requests read the file again every minute (`cluster.py`), and kopf asks here after a 401.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kopf

from gnnserve_api.errors import ResourceError
from gnnserve_operator.exec_credentials import LoginError
from gnnserve_operator.kubeconfig import paths_of, read_kubeconfig

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of a pod's ServiceAccount."""
TOKEN_FILE_S = 60.0
"""Seconds after which a file with a token is read again."""
_BEFORE_EXPIRY_S = 10.0
"""Seconds before its end at which a credential is replaced."""


@dataclass(frozen=True, slots=True)
class ClusterLogin:
    connection: kopf.ConnectionInfo
    lasts_s: float = math.inf
    """Seconds after which it is to be loaded again; infinite: when the API server refuses it."""


async def load_access(environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> ClusterLogin:
    """Read how the API server is reached now. Raises ResourceError where there is no way."""
    try:
        access = await _find_access(environment, account)
        if access.connection.server.startswith("https:"):
            access.connection.as_ssl_context()  # certificates are read now, where a sentence can be said about them
    except (LoginError, OSError, ValueError) as error:
        raise ResourceError(
            f"no way to the Kubernetes API: {error}; set KUBECONFIG, or run in a pod that has a ServiceAccount"
        ) from error
    return access


async def _find_access(environment: Mapping[str, str], account: Path) -> ClusterLogin:
    named = paths_of(environment.get("KUBECONFIG", ""))
    if not named and environment.get("KUBERNETES_SERVICE_HOST"):
        return ClusterLogin(_connection_of_pod(environment, account), TOKEN_FILE_S)
    found = await read_kubeconfig(named or paths_of("~/.kube/config"))
    ends = found.connection.expiration
    if ends is not None:
        left_s = (ends - datetime.now(UTC)).total_seconds() - _BEFORE_EXPIRY_S
        return ClusterLogin(found.connection, max(left_s, 0.0))
    return ClusterLogin(found.connection, TOKEN_FILE_S if found.may_change else math.inf)


def _connection_of_pod(environment: Mapping[str, str], account: Path) -> kopf.ConnectionInfo:
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "")
    if not port:
        raise LoginError("KUBERNETES_SERVICE_HOST is set and KUBERNETES_SERVICE_PORT is not")
    token = (account / "token").read_text().strip()
    if not token:
        raise LoginError(f"{account / 'token'} is empty")
    return kopf.ConnectionInfo(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca_path=account / "ca.crt",
        token=token,
        trust_env=True,
    )


async def login(**_kwargs: Any) -> kopf.ConnectionInfo:
    """kopf's login handler; called again when the API server refuses the previous credentials."""
    return (await load_access()).connection
