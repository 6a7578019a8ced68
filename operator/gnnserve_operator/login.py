"""Connection to the API server, the same for kopf's watches and for the operator's own requests.

kubernetes.aio reads KUBECONFIG, the pod's ServiceAccount or ~/.kube/config, whichever it finds first; kopf gets the
same. A ServiceAccount's token is rotated: kubernetes.aio reads the file again every minute, kopf asks here after a 401.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import kopf
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from gnnserve_api.errors import ResourceError


async def load_connection(environment: Mapping[str, str] = os.environ) -> Configuration:
    """Load the configuration. Raises ResourceError where there is none."""
    connection = Configuration()
    try:
        if not environment.get("KUBECONFIG") and environment.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(client_configuration=connection)  # type: ignore[no-untyped-call]
        else:
            # Given by path: kubernetes.aio reads the variable when it is imported.
            path = environment.get("KUBECONFIG") or "~/.kube/config"
            await config.load_kube_config(path, client_configuration=connection)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise ResourceError(
            f"no way to the Kubernetes API: {error}; set KUBECONFIG, or run in a pod that has a ServiceAccount"
        ) from error
    return connection


async def login(**_kwargs: Any) -> kopf.ConnectionInfo:
    """kopf's login handler; called again when the API server refuses the previous credentials."""
    connection = await load_connection()
    header = await connection.get_api_key_with_prefix("BearerToken") or ""
    scheme, _, token = header.partition(" ")
    return kopf.ConnectionInfo(
        server=connection.host,
        ca_path=connection.ssl_ca_cert,
        insecure=not connection.verify_ssl,
        username=connection.username or None,
        password=connection.password or None,
        scheme=scheme.capitalize() or None,
        token=token.strip() or None,
        certificate_path=connection.cert_file,
        private_key_path=connection.key_file,
        proxy_url=connection.proxy,
    )
