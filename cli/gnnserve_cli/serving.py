"""The server that `run` and `serve` start, its slow loop, and what they say about it."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnserve_api.device import CachePolicy, Device, size_bytes
from gnnserve_api.errors import InputError
from gnnserve_api.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.prometheus import PrometheusSource
from gnnserve_cli.render import format_bytes, output, profile_tables, put, search_lines
from gnnserve_cli.slow_loop import OwnRegistry, Source, slow_loop
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


def read_options(
    service: GNNService,
    prometheus: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
    write_token_file: Path | None,
    named_device: Device | None,
    cache: CachePolicy | None,
    gpu_memory: str | None,
) -> ServerOptions:
    return ServerOptions(
        source_of_load(prometheus, service),
        choose_credentials(service, tls_cert, tls_key, token_file, write_token_file),
        choose_device(service, named_device, cache, gpu_memory),
    )


def serve_published(
    stored: Repository, published: RevisionManifest, service: GNNService, sock: socket.socket, options: ServerOptions
) -> None:
    """Show the profile of a published revision and answer from it until SIGINT or SIGTERM."""
    revision = stored.load(published.revision)
    print_profile(published)
    serve_routed(revision, service, sock, options.source, options.credentials, options.device)


def source_of_load(prometheus: str | None, service: GNNService) -> Source:
    if prometheus is None:
        return OwnRegistry()
    interval_s = service.spec.routing.interval_seconds
    return PrometheusSource.of_service(prometheus, service.metadata.name, interval_s)


def choose_credentials(
    service: GNNService, certificate: Path | None, key: Path | None, tokens: Path | None, write_tokens: Path | None
) -> Credentials:
    """What the options say. A manifest's own words are for a cluster; where nothing takes their place, it is said."""
    if (certificate is None) != (key is None):
        given, missing = ("--tls-cert", "--tls-key") if key is None else ("--tls-key", "--tls-cert")
        raise InputError(missing, f"is not given, and {given} is", "give both, or none")
    endpoint = service.spec.endpoint
    if endpoint.tls is not None and certificate is None:
        _note_secret("spec.endpoint.tls", "this server speaks plain HTTP", "--tls-cert and --tls-key")
    if endpoint.tokens is not None and tokens is None:
        _note_secret("spec.endpoint.tokens", "this server answers every client that reaches it", "--token-file")
    if endpoint.write_tokens is not None and write_tokens is None:
        _note_secret("spec.endpoint.writeTokens", "this server takes no labels", "--write-token-file")
    pair = None if certificate is None or key is None else KeyPairFiles(certificate, key)
    return Credentials(pair, tokens, write_tokens)


def choose_device(
    service: GNNService, named: Device | None, cache: CachePolicy | None, gpu_memory: str | None
) -> DeviceSettings:
    """What the options say, and the manifest where they say nothing."""
    worker = service.spec.worker
    chosen = worker.device if named is None else named
    memory = worker.gpu_memory if gpu_memory is None else gpu_memory
    if chosen is Device.CPU:
        source = "spec.worker.device" if named is None else "--device"
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
    revision: LoadedRevision,
    service: GNNService,
    sock: socket.socket,
    source: Source,
    credentials: Credentials,
    settings: DeviceSettings,
) -> None:
    """Serves until SIGINT or SIGTERM."""
    exit_on_memory_fault(lambda words: print(f"error: {words}", file=sys.stderr, flush=True), ExitCode.REPOSITORY)
    served = device.open_served(revision, settings)
    _say_device(served.device_stats(), was_asked=service.spec.worker.gpu is not None)
    with slow_loop(service.spec, source) as begin_routing:

        def begin(serving: server.Serving) -> None:
            nodes = range(revision.graph.nodes) if revision.ids is None else revision.ids.shown(0, 3)
            announce(sock, nodes, credentials)
            begin_routing(serving)

        server.serve_revision(served, service, sock, begin, credentials)


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
