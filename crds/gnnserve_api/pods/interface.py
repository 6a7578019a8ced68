"""Contract between the operator and the programs in its pods: environment, paths, ports, exit codes.

The operator's builders write it into pod templates, the worker's entry points read it.
"""

from __future__ import annotations

from enum import IntEnum

HTTP_PORT = 8080
"""Port of worker pods, for HTTP as for HTTPS."""
HTTP_PORT_NAME = "http"
HTTPS_PORT_NAME = "https"
"""Two names: while pods are replaced, a Service or a scrape for one must not meet a pod that speaks the other."""
SERVICE_PORT = 80
"""Port of the Service for HTTP, so that a URL needs none."""
TLS_SERVICE_PORT = 443
"""Likewise, where workers speak HTTPS."""
GRPC_PORT = 8001
"""Port of worker pods and of the Service for gRPC: the one that clients of Triton take where none is named."""
GRPC_PORT_NAME = "grpc"
GRPC_TLS_PORT_NAME = "grpcs"
"""Two names, as those of HTTP."""
USER_ID = 65_532
"""User, group and fsGroup of every pod, unless the platform chooses them; the images are made for any user."""

GENERATE_COMMAND = ("python", "-m", "gnnserve_worker.pods.generate")
EMBEDDINGS_COMMAND = ("python", "-m", "gnnserve_worker.pods.embeddings")
SERVE_COMMAND = ("python", "-m", "gnnserve_worker.pods.serve")
SERVE_POOL_COMMAND = ("python", "-m", "gnnserve_worker.pods.serve_pool")

REPOSITORY_PATH = "/repository"
ROUTING_PATH = "/etc/gnnserve/routing"
"""Folder of the mounted ConfigMap, for a start while the API server is away."""
TLS_PATH = "/etc/gnnserve/tls"
"""Folder of the mounted Secret of type kubernetes.io/tls."""
TLS_CERTIFICATE_KEY = "tls.crt"
TLS_PRIVATE_KEY_KEY = "tls.key"
"""Kubernetes' own names of what is in it."""
TOKENS_PATH = "/etc/gnnserve/tokens"
"""Folder of the mounted Secret whose values are tokens."""
WRITE_TOKENS_PATH = "/etc/gnnserve/write-tokens"
"""Folder of the mounted Secret whose values are tokens that may write."""
SERVICES_PATH = "/etc/gnnserve/services"
"""Folder of the mounted ConfigMap with the services of a pool, for a start while the API server is away."""
SERVICE_SECRETS_PATH = "/etc/gnnserve/secrets"
"""In pods of a pool: a folder for each service, and in it one for each Secret that the service names."""
UPDATES_PATH = "/var/lib/gnnserve/updates"
"""Folder with the service's SQLite logs of changes: the one part of the repository's volume that workers write."""
LOG_SECRET_PATH = "/etc/gnnserve/log"  # noqa: S105 - a folder
"""Folder of the mounted Secret with the address of the PostgreSQL that has the log of changes."""
HUB_PATH = "/etc/gnnserve/hub"
"""Folder of the mounted Secret with the token for the Hugging Face Hub."""
HUB_TOKEN_KEY = "token"  # noqa: S105 - a key
EMBEDDINGS_PATH = "/etc/gnnserve/embeddings"
"""Folder with a folder for each of spec.embeddings.sinks, by its place: the mounted Secret with its address."""
TEMPORARY_PATH = "/tmp"  # noqa: S108 - an emptyDir of the pod
TERMINATION_MESSAGE_PATH = "/dev/termination-log"

MANIFEST_VARIABLE = "GNNSERVE_MANIFEST"
"""JSON of a GNNService whose spec has the fields that are for a Job (`spec/audience.py`)."""
SOURCE_VARIABLE = "GNNSERVE_SOURCE"
"""JSON of the GNNService as the Job that generates is handed it, for a Job of embeddings: its source has the columns
that recommendations are filtered by. Unset: no columns are kept."""
DATA_VARIABLE = "GNNSERVE_DATA"
"""Folder where relative paths of the manifest begin: the mount of the data volume. Set where the manifest has one."""
MIRROR_VARIABLE = "GNNSERVE_MIRROR"
"""An address or a folder, in which each public data set has a folder of its name with its files; for manifests that
name no mirror. Of the user's environment, and in pods of the chart's `worker.extraEnv`. Unset: where their authors
publish them."""
HUB_ENDPOINT_VARIABLE = "HF_ENDPOINT"
"""Address of the Hugging Face Hub, or of a mirror of it. Of the user's environment, and in pods of the chart's
`worker.extraEnv`, as the hub's own programs take it. Unset: https://huggingface.co."""
HUB_TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105 - a variable
"""Token for private repositories of the hub, in the user's environment."""
HUB_TOKEN_FILE_VARIABLE = "GNNSERVE_HUB_TOKEN"  # noqa: S105 - a variable
"""File with that token, in place of the variable: in pods, of the Secret in spec.generation.hub."""
REPOSITORY_VARIABLE = "GNNSERVE_REPOSITORY"
SERVICE_VARIABLE = "GNNSERVE_SERVICE"
NAMESPACE_VARIABLE = "GNNSERVE_NAMESPACE"
ROUTING_VARIABLE = "GNNSERVE_ROUTING"
"""Name of the ConfigMap to follow."""
POOL_VARIABLE = "GNNSERVE_POOL"
"""Name of the GNNWorkerPool that a pod belongs to."""
SERVICES_VARIABLE = "GNNSERVE_SERVICES"
"""Name of the ConfigMap with the services of the pool."""
TLS_VARIABLE = "GNNSERVE_TLS"
"""Folder with certificate and key; unset or empty: plain HTTP."""
TOKENS_VARIABLE = "GNNSERVE_TOKENS"
"""Folder with a token in each file; unset or empty: no token is needed."""
WRITE_TOKENS_VARIABLE = "GNNSERVE_WRITE_TOKENS"
"""Folder with a token in each file; unset or empty: no request may write."""
SERVICE_UID_VARIABLE = "GNNSERVE_SERVICE_UID"
"""uid that the log of changes is named by: the GNNService's, or the one of which it adopts the log; set where there is
a log."""
SQLITE_LOG_VARIABLE = "GNNSERVE_SQLITE_LOG"
"""The SQLite file with the log of changes. File and folder may be missing; the worker may make them."""
POSTGRES_LOG_VARIABLE = "GNNSERVE_POSTGRES_LOG"
"""A file with the address of the PostgreSQL that has the log of changes. Neither this nor the one before is set: the
graph does not change."""
MAX_DELTA_VARIABLE = "GNNSERVE_MAX_DELTA"
"""Bytes of memory that changes may take; set where there is a log."""
EMBEDDED_REVISION_VARIABLE = "GNNSERVE_EMBEDDED_REVISION"
"""For an embeddings Job: the published revision whose embeddings are made."""
COMPACT_VARIABLE = "GNNSERVE_COMPACT"
"""For a generation Job: the revision whose graph is to be made anew at the end of the log of changes."""
RETRAIN_VARIABLE = "GNNSERVE_RETRAIN"
"""For such a Job: `true` where the networks are to be trained anew on that graph."""
DEVICE_VARIABLE = "GNNSERVE_DEVICE"
"""A `Device`; unset: Auto."""
CACHE_VARIABLE = "GNNSERVE_CACHE"
"""A `CachePolicy`; unset: Frequency."""
GPU_MEMORY_VARIABLE = "GNNSERVE_GPU_MEMORY"
"""Bytes of the GPU's memory that a worker takes at most; unset: all that is free."""
GRPC_VARIABLE = "GNNSERVE_GRPC_PORT"
"""The port at which a worker answers over gRPC too; unset: it does not."""
LAME_DUCK_VARIABLE = "GNNSERVE_LAME_DUCK_S"
"""Seconds between SIGTERM and draining, in which answers ask clients to connect anew; elsewhere 0."""
LAME_DUCK_S = 5
"""What pods get: long enough for endpoints and clients to follow."""
PRE_STOP_S = 5
"""Seconds before SIGTERM: a Service sends requests to a pod for a moment after it began to end."""
TERMINATION_GRACE_S = 60
"""Kubernetes kills what is not done by then."""


def service_secret_path(service: str, kind: str) -> str:
    """Folder in which a pod of a pool has a Secret of one of its services. `kind`: a `CredentialKind`."""
    return f"{SERVICE_SECRETS_PATH}/{service}/{kind.lower()}"


class PodExit(IntEnum):
    """Exit codes of the pods' programs; the command line's mean the same."""

    OK = 0
    FAILURE = 1
    """Unexpected; a new attempt may help."""
    BAD_INPUT = 2
    """The manifest or the graph is wrong: never tried again."""
    REPOSITORY = 3
    """A repository is altered or of a newer version."""
    RESOURCE = 4
    """Something is missing that may come back: disk space, memory."""
    DEVICE = 7
    """The GPU failed the process: started anew, it looks for one again."""
