"""The server that `run` and `serve` start, its slow loop, and what they say about it."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gnnserve_api.device import CachePolicy, Device, size_bytes
from gnnserve_api.errors import InputError
from gnnserve_api.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.prometheus import PrometheusSource
from gnnserve_cli.render import format_bytes, output, profile_tables, put, search_lines
from gnnserve_cli.slow_loop import OwnRegistry, Source, slow_loop
from gnnserve_cli.updates import check_address, updates_of
from gnnserve_worker.changes.options import UpdatesOptions
from gnnserve_worker.inference.device_stats import ON_CPU, DeviceStats
from gnnserve_worker.pods import device
from gnnserve_worker.pods.device import DeviceSettings
from gnnserve_worker.repository.loaded import LoadedRevision
from gnnserve_worker.repository.memory_fault import exit_on_memory_fault
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving import server
from gnnserve_worker.serving.security.credentials import Credentials
from gnnserve_worker.serving.security.tls import KeyPairFiles

_LENT = "lent"
"""The part of `DeviceStats.memory_bytes` that is not the computing GPU's."""
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound


def print_profile(published: RevisionManifest) -> None:
    console = output()
    put(console, *profile_tables(published.profile, console), *search_lines(published.profile))


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What `run` and `serve` read of their options, beside the address."""

    source: Source
    credentials: Credentials
    device: DeviceSettings
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
) -> ServerOptions:
    return ServerOptions(
        source_of_load(prometheus, service),
        choose_credentials(service, tls_cert, tls_key, token_file, write_token_file, postgres_uri_file),
        choose_device(service, named_device, cache, gpu_memory),
    )


def serve_published(
    stored: Repository, published: RevisionManifest, service: GNNService, sock: socket.socket, options: ServerOptions
) -> None:
    """Show the profile of a published revision and answer from it until SIGINT or SIGTERM."""
    options = replace(options, updates=updates_of(service, stored, options.credentials.log_uri))
    if service.spec.revision is not None:
        _note("while spec.revision is set, graph, model and variants of the manifest change nothing")
    print_profile(published)
    serve_routed(partial(stored.load, published.revision), service, sock, options)


def source_of_load(prometheus: str | None, service: GNNService) -> Source:
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
    """What the options say. A manifest's own words are for a cluster; where nothing takes their place, it is said."""
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
        _note("this server takes no changes of the graph, since no token may write; --write-token-file names some")
    if updates is not None and updates.log.postgres is not None and log_uri is None:
        kept = "this server keeps changes in SQLite, in its repository"
        _note_secret("spec.updates.log.postgres", kept, "--postgres-uri-file")
    pair = None if certificate is None or key is None else KeyPairFiles(certificate, key)
    return Credentials(pair, tokens, write_tokens, log_uri)


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
                _note(f"{option} {value} changes nothing: {source} is CPU, and it is of a GPU's memory")
    return DeviceSettings(
        device=chosen,
        cache=worker.cache.policy if cache is None else cache,
        memory_bytes=None if memory is None else size_bytes(memory),
    )


def _note_secret(field: str, meaning: str, options: str) -> None:
    _note(f"{field} names a Secret of a cluster: {meaning}; {options} would change that")


def _note(words: str) -> None:
    print(f"note: {words}", file=sys.stderr)


def serve_routed(
    load: Callable[[int | None], LoadedRevision],
    service: GNNService,
    sock: socket.socket,
    options: ServerOptions,
) -> None:
    """Serves until SIGINT or SIGTERM. `load` opens the revision; it is given the memory that changes may take, in
    bytes, or None where the graph stays as it is."""
    exit_on_memory_fault(lambda words: print(f"error: {words}", file=sys.stderr, flush=True), ExitCode.REPOSITORY)
    followed = None
    if options.updates is not None:
        # Most servers have no log.
        from gnnserve_worker.pods.followed_log import FollowedLog  # noqa: PLC0415

        followed = FollowedLog(options.updates)
    if followed is None:
        served = device.open_served(load(None), options.device)
    else:
        served = followed.open(
            load, lambda loaded, replica: device.open_served(loaded, options.device, replica=replica)
        )
    _say_device(served.device_stats(), was_asked=service.spec.worker.gpu is not None)
    with slow_loop(service.spec, options.source) as begin_routing:

        def begin(serving: server.Serving) -> None:
            nodes = served.shown_ids(0, 3)
            announce(sock, nodes, options.credentials)
            begin_routing(serving)

        updates = None if followed is None else followed.updates
        server.serve_revision(served, service, sock, begin, options.credentials, updates)


def _say_device(stats: DeviceStats, *, was_asked: bool) -> None:
    """Name the device on standard error: a GPU always, the CPU unless there is no GPU at all and none was asked for."""
    if stats.device == ON_CPU.device:
        if stats.problem is not None and (was_asked or not stats.problem.startswith(device.NO_GPU_SEEN)):
            _note(f"computing on {stats.device}: {stats.problem}")
        return
    own = {part: size for part, size in stats.memory_bytes.items() if part != _LENT}
    parts = ", ".join(f"{part} {format_bytes(size)}" for part, size in own.items())
    lent = f", and {format_bytes(stats.memory_bytes[_LENT])} of other GPUs'" if _LENT in stats.memory_bytes else ""
    _note(f"computing on {stats.device}: {parts} of {format_bytes(stats.memory_budget_bytes)} of its memory{lent}")
    _note("latencies of the table above are the profile's; `gnnserve variants URL` shows those of this GPU")
    if stats.problem is not None:
        _note(stats.problem)


def announce(sock: socket.socket, nodes: Sequence[int | str], credentials: Credentials) -> None:
    """The address, and a request that works: with ids that the graph has."""
    host, port = sock.getsockname()[:2]
    host = _EVERYWHERE.get(host, host)
    scheme = "http" if credentials.tls is None else "https"
    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    body = shlex.quote(json.dumps({"nodes": list(nodes[:3])}))
    # Not through rich: a wrapped line could not be pasted.
    print(f"Serving on {url}", flush=True)
    options = ""
    if credentials.tls is not None:
        # Where it signed itself this is all that it takes; otherwise it is its signer's.
        options += f" --cacert {shlex.quote(str(credentials.tls.certificate))}"
    if credentials.tokens is not None:
        # The shell reads it: a token in a line that is pasted would stay in its history.
        options += f' -H "authorization: Bearer $(head -n 1 {shlex.quote(str(credentials.tokens))})"'
    print(f"  curl -s{options} {url}/v1/predict -H 'content-type: application/json' -d {body}", flush=True)
    print("  Ctrl-C stops it.", flush=True)


def farewell() -> None:
    print("Stopped.", file=sys.stderr)
