"""Options of a server that `run` and `serve` read from the command line and the manifest, beside the address."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from gnnserve_api.device import CachePolicy, Device, size_bytes
from gnnserve_api.errors import InputError
from gnnserve_api.pods.tracing import DEFAULT_SAMPLED_PERMILLE
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.local_log import check_address
from gnnserve_cli.prometheus import PrometheusSource
from gnnserve_cli.slow_loop import LoadSource, OwnRegistry
from gnnserve_worker.changes.options import UpdatesOptions
from gnnserve_worker.pods.device import DeviceSettings
from gnnserve_worker.serving.security.credentials import Credentials, require_usable
from gnnserve_worker.serving.security.tls import KeyPairFiles
from gnnserve_worker.serving.tracing.options import TracingOptions, check_tracing, read_tracing


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a server that `run` and `serve` read, beside the address."""

    source: LoadSource
    credentials: Credentials
    device: DeviceSettings
    tracing: TracingOptions | None = None
    """Where traces go; None: nothing is traced."""
    updates: UpdatesOptions | None = None
    """The log of changes; None: the graph stays as it was generated, or the repository is not known yet."""


def read_options(
    service: GNNService,
    prometheus: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
    write_token_file: Path | None,
    postgres_uri_file: Path | None,
    named_device: Device | None,
    cache: CachePolicy | None,
    gpu_memory: str | None,
    otlp_endpoint: str | None,
    trace_permille: float | None,
) -> ServerOptions:
    return ServerOptions(
        source_of_load(prometheus, service),
        choose_credentials(service, tls_cert, tls_key, token_file, write_token_file, postgres_uri_file),
        choose_device(service, named_device, cache, gpu_memory),
        choose_tracing(service, otlp_endpoint, trace_permille),
    )


def source_of_load(prometheus: str | None, service: GNNService) -> LoadSource:
    if prometheus is None:
        return OwnRegistry()
    interval_s = service.spec.routing.interval_seconds
    return PrometheusSource.of_service(prometheus, service.metadata.name, interval_s)


def choose_credentials(
    service: GNNService,
    certificate: Path | None,
    key: Path | None,
    tokens: Path | None,
    write_tokens: Path | None,
    log_uri: Path | None,
) -> Credentials:
    """What the options say, and that it can be used: a command that trains first must not end over a misspelt file
    afterwards. A manifest's own words are for a cluster; where nothing takes their place, it is said."""
    if (certificate is None) != (key is None):
        given, missing = ("--tls-cert", "--tls-key") if key is None else ("--tls-key", "--tls-cert")
        raise InputError(missing, f"is not given, and {given} is", "give both, or none")
    check_address(service, log_uri)
    endpoint, updates = service.spec.endpoint, service.spec.updates
    if endpoint.tls is not None and certificate is None:
        _note_secret("spec.endpoint.tls", "this server speaks plain HTTP", "--tls-cert and --tls-key")
    if endpoint.tokens is not None and tokens is None:
        _note_secret("spec.endpoint.tokens", "this server answers every client that reaches it", "--token-file")
    if endpoint.write_tokens is not None and write_tokens is None:
        what = "labels" if updates is None else "labels and no changes"
        _note_secret("spec.endpoint.writeTokens", f"this server takes no {what}", "--write-token-file")
    elif updates is not None and write_tokens is None:
        note("this server takes no changes of the graph, since no token may write; --write-token-file names some")
    if updates is not None and updates.log.postgres is not None and log_uri is None:
        kept = "this server keeps changes in SQLite, in its repository"
        _note_secret("spec.updates.log.postgres", kept, "--postgres-uri-file")
    pair = None if certificate is None or key is None else KeyPairFiles(certificate, key)
    chosen = Credentials(pair, tokens, write_tokens, log_uri)
    require_usable(chosen)
    return chosen


def choose_device(
    service: GNNService, named: Device | None, cache: CachePolicy | None, gpu_memory: str | None
) -> DeviceSettings:
    """What the options say, and the manifest where they say nothing."""
    worker = service.spec.worker
    chosen, source = (worker.device, "spec.worker.device") if named is None else (named, "--device")
    memory = worker.gpu_memory if gpu_memory is None else gpu_memory
    if chosen is Device.CPU:
        for option, value in (("--cache", cache), ("--gpu-memory", gpu_memory)):
            if value is not None:
                note(f"{option} {value} changes nothing: {source} is CPU, and it is of a GPU's memory")
    return DeviceSettings(
        device=chosen,
        cache=worker.cache.policy if cache is None else cache,
        memory_bytes=None if memory is None else size_bytes(memory),
    )


def choose_tracing(service: GNNService, endpoint: str | None, sampled_permille: float | None) -> TracingOptions | None:
    """The options given, or else those that OpenTelemetry's variables state."""
    found = read_tracing(os.environ, service.metadata.namespace)
    if endpoint is not None:
        permille = DEFAULT_SAMPLED_PERMILLE if found is None else found.sampled_permille
        found = check_tracing(TracingOptions(endpoint, permille, service.metadata.namespace), "--otlp-endpoint")
    if found is None:
        if sampled_permille is not None:
            raise InputError("--trace-permille", "there is no receiver of traces", "name one with --otlp-endpoint")
        if service.spec.worker.tracing is not None:
            note("spec.worker.tracing is for a cluster: this server traces nothing; --otlp-endpoint would change that")
        return None
    return found if sampled_permille is None else replace(found, sampled_permille=sampled_permille)


def _note_secret(field: str, meaning: str, options: str) -> None:
    note(f"{field} names a Secret of a cluster: {meaning}; {options} would change that")


def note(words: str) -> None:
    print(f"note: {words}", file=sys.stderr)
