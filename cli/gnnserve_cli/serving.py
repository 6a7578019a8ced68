"""The server that `run` and `serve` start, its slow loop, and what they say about it."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gnnserve_api.device import CachePolicy, Device, size_bytes
from gnnserve_api.errors import InputError
from gnnserve_api.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_api.tracing import DEFAULT_SAMPLED_PERMILLE
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.prometheus import PrometheusSource
from gnnserve_cli.render import format_bytes, output, profile_tables, put, search_lines
from gnnserve_cli.slow_loop import OwnRegistry, Source, slow_loop
from gnnserve_cli.updates import check_address, updates_of
from gnnserve_worker.changes.options import UpdatesOptions
from gnnserve_worker.inference.device_stats import ON_CPU, DeviceStats
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.pods import device
from gnnserve_worker.pods.device import DeviceSettings
from gnnserve_worker.repository.loaded import LoadedRevision
from gnnserve_worker.repository.memory_fault import exit_on_memory_fault
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving import listening_socket, server
from gnnserve_worker.serving.http.pairs import example_pair
from gnnserve_worker.serving.security.credentials import Credentials, require_usable
from gnnserve_worker.serving.security.tls import KeyPairFiles
from gnnserve_worker.serving.served_service import ServiceSettings
from gnnserve_worker.serving.tracing.options import TracingOptions, check_tracing, read_tracing

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


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where a service answers; each is bound."""

    http: socket.socket
    grpc: socket.socket | None = None
    """None: it does not answer over gRPC."""


@dataclass(frozen=True, slots=True)
class Published:
    """A service to answer for, and the revision that does."""

    service: GNNService
    stored: Repository
    revision: RevisionManifest
    sockets: Sockets
    options: ServerOptions


def require_names(services: Sequence[GNNService]) -> None:
    """Raises InputError where two of these services could not be told apart."""
    names = [service.metadata.name for service in services]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                "metadata.name", f"{name} is that of {names.count(name)} manifests", "give each service its own name"
            )


@contextmanager
def bound(host: str, port: int, grpc_port: int | None, services: int) -> Iterator[list[Sockets]]:
    """Sockets for each service, bound to these ports and the ones after them, or where one is 0, to any free ones."""
    with ExitStack() as opened:
        found: list[Sockets] = []
        for after in range(services):
            http = opened.enter_context(closing(listening_socket.bind(host, port + after if port else 0)))
            grpc = None
            if grpc_port is not None:
                option = listening_socket.GRPC_PORT_OPTION
                bound_one = listening_socket.bind(host, grpc_port + after if grpc_port else 0, option)
                grpc = opened.enter_context(closing(bound_one))
            found.append(Sockets(http, grpc))
        _check_ports_differ(found)
        yield found


def _check_ports_differ(sockets: Sequence[Sockets]) -> None:
    """Sockets that do not listen yet may have the same address."""
    taken = {each.http.getsockname()[1] for each in sockets}
    for each in sockets:
        if each.grpc is not None and (port := each.grpc.getsockname()[1]) in taken:
            raise InputError(
                listening_socket.GRPC_PORT_OPTION, f"{port} is a port that HTTP takes", "choose another, or 0 for any"
            )


def serve_published(published: Sequence[Published], shares: Mapping[str, float]) -> None:
    """Open each published revision, show its profile, and answer from them until SIGINT or SIGTERM. `shares`: as
    `read_shares` gives them."""
    offered: list[Offered] = []
    for of in published:
        service, name = of.service, of.service.metadata.name
        updates = updates_of(service, of.stored, of.options.credentials.log_uri)
        if service.spec.revision is not None:
            _note("while spec.revision is set, graph, model and variants of the manifest change nothing")
        require_second(service, of.stored, of.revision.revision)
        load = partial(of.stored.load, of.revision.revision)
        offered.append(
            Offered(
                service,
                load,
                of.sockets,
                replace(of.options, updates=updates),
                shares.get(name, float(service.spec.worker.share)),
                of.stored.load,
                partial(_show_profile, of.revision, f"{name}:" if len(published) > 1 else ""),
            )
        )
    serve_routed(offered)


def _show_profile(revision: RevisionManifest, title: str) -> None:
    """`title`: a line above the profile; empty: none."""
    if title:
        print(title, flush=True)
    print_profile(revision)


def require_second(service: GNNService, stored: Repository, revision: str) -> None:
    """Raises InputError where the second revision that the manifest names is not published. `revision`: the first."""
    named = service.spec.routing.second_revision
    if named == revision:
        _note(f"spec.routing.canary changes nothing: {named} is the revision that answers")
    elif named is not None and stored.find_named(named) is None:
        published = [one.revision for one in stored.revisions()]
        others = ", ".join(name for name in published if name != revision)
        raise InputError(
            "spec.routing.canary.revision",
            f"{named} is not published; there is {revision}, which answers already"
            + (f", and beside it {others}" if others else " and no other one"),
            f"name {others.replace(', ', ' or ')}, or take routing.canary away"
            if others
            else "generate a second revision and name it, or take routing.canary away",
        )


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
        _note("this server takes no changes of the graph, since no token may write; --write-token-file names some")
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
                _note(f"{option} {value} changes nothing: {source} is CPU, and it is of a GPU's memory")
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
            _note("spec.worker.tracing is for a cluster: this server traces nothing; --otlp-endpoint would change that")
        return None
    return found if sampled_permille is None else replace(found, sampled_permille=sampled_permille)


def _note_secret(field: str, meaning: str, options: str) -> None:
    _note(f"{field} names a Secret of a cluster: {meaning}; {options} would change that")


def _note(words: str) -> None:
    print(f"note: {words}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Offered:
    """A service to answer for."""

    service: GNNService
    load: Callable[[int | None], LoadedRevision]
    """Opens the revision; it is given the memory that changes may take, in bytes, or None where the graph stays as it
    is."""
    sockets: Sockets
    options: ServerOptions
    share: float = 1.0
    """Weight of the service in the division of the server's time."""
    load_named: Callable[[str], LoadedRevision] | None = None
    """Opens another revision by its name, where the manifest may name a second one."""
    on_opened: Callable[[], None] = lambda: None
    """Called when the revision is open: nothing is shown of one whose files are damaged."""

    def begin_canary(self, handle: server.Serving) -> None:
        """Answer by a second revision too, where the manifest names one."""
        spec, load, options = self.service.spec, self.load_named, self.options
        if spec.routing.canary is None or load is None:
            return
        # Most services have no second revision.
        from gnnserve_worker.following.canary import CanaryFollower  # noqa: PLC0415

        first = handle.revision.manifest.revision
        table = spec.routing_table(first)
        follower = CanaryFollower(
            handle.served, lambda name: device.open_served(load(name), options.device), lambda: True, lambda: first
        )
        # The event loop, which this is called on, has a part in it.
        threading.Thread(target=follower.declare, args=(table,), name="canary", daemon=True).start()

    def _open_changing(self, loaded: LoadedRevision, replica: LivingRevision) -> ServedRevision:
        from gnnserve_cli.compiling import compile_for_changes  # noqa: PLC0415

        compile_for_changes(loaded, _note)
        return device.open_served(loaded, self.options.device, replica=replica)

    def open(self) -> server.Offer:
        name, options, updates = self.service.metadata.name, self.options, None
        if options.updates is None:
            revision = device.open_served(self.load(None), options.device)
        else:
            # Most servers have no log.
            from gnnserve_worker.pods.followed_log import FollowedLog  # noqa: PLC0415

            followed = FollowedLog(options.updates)
            revision, updates = followed.open(self.load, self._open_changing), followed.updates
        self.on_opened()
        _say_device(revision.device_stats(), was_asked=self.service.spec.worker.gpu is not None)
        settings = ServiceSettings(
            name, self.sockets.http, options.credentials, updates, self.share, self.sockets.grpc, options.tracing
        )  # fmt: skip
        return server.Offer(self.service, revision, settings)


def serve_routed(offered: Sequence[Offered]) -> None:
    """Serves until SIGINT or SIGTERM."""
    exit_on_memory_fault(lambda words: print(f"error: {words}", file=sys.stderr, flush=True), ExitCode.REPOSITORY)
    offers = [of.open() for of in offered]
    with ExitStack() as loops:
        names = [of.service.metadata.name if len(offered) > 1 else "" for of in offered]
        begin_routing = [
            loops.enter_context(slow_loop(of.service.spec, of.options.source, name))
            for of, name in zip(offered, names, strict=True)
        ]

        def begin(handles: Sequence[server.Serving]) -> None:
            for of, offer, name in zip(offered, offers, names, strict=True):
                announce(of.sockets, example_request(offer.revision), of.options.credentials, name)
            for of, handle in zip(offered, handles, strict=True):
                of.begin_canary(handle)
            print("  Ctrl-C stops it." if len(offered) == 1 else "Ctrl-C stops them.", flush=True)
            for begin_loop, handle in zip(begin_routing, handles, strict=True):
                begin_loop(handle)

        server.serve_revisions(offers, begin)


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


def example_request(revision: ServedRevision) -> dict[str, Any]:
    """A prediction of what the service answers about, with ids that the graph has."""
    return {"nodes": revision.shown_ids(0, 3)} if revision.links is None else {"pairs": [example_pair(revision)]}


def announce(sockets: Sockets, example: Mapping[str, Any], credentials: Credentials, name: str = "") -> None:
    """The address, and a request that works. `name`: of the service, where there are several."""
    scheme = "http" if credentials.tls is None else "https"
    url = f"{scheme}://{_address(sockets.http)}"
    body = shlex.quote(json.dumps(example))
    # Not through rich: a wrapped line could not be pasted.
    print(f"Serving {name} on {url}" if name else f"Serving on {url}", flush=True)
    if sockets.grpc is not None:
        print(f"  gRPC, of the Open Inference Protocol: {_address(sockets.grpc)}", flush=True)
    options = ""
    if credentials.tls is not None:
        # Where it signed itself this is all that it takes; otherwise it is its signer's.
        options += f" --cacert {shlex.quote(str(credentials.tls.certificate))}"
    if credentials.tokens is not None:
        # The shell reads it: a token in a line that is pasted would stay in its history.
        options += f' -H "authorization: Bearer $(head -n 1 {shlex.quote(str(credentials.tokens))})"'
    print(f"  curl -s{options} {url}/v1/predict -H 'content-type: application/json' -d {body}", flush=True)


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    host = _EVERYWHERE.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def farewell() -> None:
    print("Stopped.", file=sys.stderr)
