"""The server that `run` and `serve` start, its slow loop, and what they say about it."""

from __future__ import annotations

import json
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gnnserve_api.errors import InputError, RepositoryError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.local_log import updates_of
from gnnserve_cli.local_service import LocalService
from gnnserve_cli.render import format_bytes, print_profile
from gnnserve_cli.server_options import ServerOptions, note
from gnnserve_cli.slow_loop import slow_loop
from gnnserve_worker.inference.device_stats import ON_CPU, DeviceStats
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.pods import device
from gnnserve_worker.repository.memory_fault import exit_on_memory_fault
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving import listening_socket
from gnnserve_worker.serving.process import server
from gnnserve_worker.serving.process.served_service import ServedService, ServiceSettings
from gnnserve_worker.serving.security.credentials import Credentials

if TYPE_CHECKING:
    from gnnserve_worker.pods.followed_log import FollowedLog

_LENT = "lent"
"""The part of `DeviceStats.memory_bytes` that is not the computing GPU's."""
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where a service answers; each is bound."""

    http: socket.socket
    grpc: socket.socket | None = None
    """None: it does not answer over gRPC."""


@dataclass(frozen=True, slots=True)
class PublishedService:
    """A service to answer for, and the revision that does."""

    service: GNNService
    stored: Repository
    revision: RevisionManifest
    sockets: Sockets
    options: ServerOptions


@dataclass(frozen=True, slots=True)
class UnpublishedService:
    """A service that is to be answered for, and has no revision that could."""

    service: GNNService
    sockets: Sockets
    options: ServerOptions
    problem: RepositoryError


def unpublished(
    service: GNNService, sockets: Sockets, options: ServerOptions, problem: RepositoryError, among: int
) -> UnpublishedService:
    """A service whose repository has no revision that could answer. It does not keep others from being served; raises
    the problem where there are none (`among`: how many services there are)."""
    if among == 1:
        raise problem
    return UnpublishedService(service, sockets, options, problem)


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


def serve_published(published: Sequence[PublishedService | UnpublishedService], shares: Mapping[str, float]) -> None:
    """Open each published revision, show its profile, and answer from them until SIGINT or SIGTERM. `shares`: as
    `read_shares` gives them."""
    offered: list[OfferedService] = []
    for of in published:
        service, name = of.service, of.service.metadata.name
        share = shares.get(name, float(service.spec.worker.share))
        if isinstance(of, UnpublishedService):
            offered.append(OfferedService(service, partial(_fail, of.problem), of.sockets, of.options, share))
            continue
        updates = updates_of(service, of.stored, of.options.credentials.log_uri)
        if service.spec.revision is not None:
            note("while spec.revision is set, graph, model and variants of the manifest change nothing")
        require_second(service, of.stored, of.revision.revision)
        load = partial(load_revision, of.stored, of.revision.revision)
        offered.append(
            OfferedService(
                service,
                load,
                of.sockets,
                replace(of.options, updates=updates),
                share,
                of.revision.revision,
                partial(load_revision, of.stored),
                partial(_show_profile, of.revision, f"{name}:" if len(published) > 1 else ""),
            )
        )
    serve_routed(offered)


def _fail(error: RepositoryError, _max_delta_bytes: int | None) -> LoadedRevision:
    raise error


def _show_profile(revision: RevisionManifest, title: str) -> None:
    """`title`: a line above the profile; empty: none."""
    if title:
        print(title, flush=True)
    print_profile(revision.profile)


def require_second(service: GNNService, stored: Repository, revision: str) -> None:
    """Raises InputError where the second revision that the manifest names is not published. `revision`: the first."""
    named = service.spec.routing.second_revision
    if named == revision:
        note(f"spec.routing.canary changes nothing: {named} is the revision that answers")
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


@dataclass(frozen=True, slots=True)
class OfferedService:
    """A service to answer for."""

    service: GNNService
    load: Callable[[int | None], LoadedRevision]
    """Opens the revision; it is given the memory that changes may take, in bytes, or None where the graph stays as it
    is."""
    sockets: Sockets
    options: ServerOptions
    share: float = 1.0
    """Weight of the service in the division of the server's time."""
    revision: str = ""
    """Name of the revision; empty: none is published."""
    load_named: Callable[[str, int | None], LoadedRevision] | None = None
    """Opens another revision by its name, as `load` does, where the manifest may name a second one."""
    on_opened: Callable[[], None] = lambda: None
    """Called when the revision is open: nothing is shown of one whose files are damaged."""

    def begin_canary(self, served: ServedService, local: LocalService, log: FollowedLog | None) -> None:
        """Answer by a second revision too, which follows this log, where the manifest names one."""
        spec = self.service.spec
        if spec.routing.canary is None or self.load_named is None:
            return
        # Most services have no second revision.
        from gnnserve_worker.following.canary import CanaryFollower  # noqa: PLC0415

        table = spec.routing_table(self.revision)
        follower = CanaryFollower(
            served,
            partial(self._open_second, log, self.load_named),
            lambda: local.is_settled,
            lambda: served.revision,
        )
        # The event loop, which this is called on, has a part in it.
        threading.Thread(target=follower.declare, args=(table,), name="canary", daemon=True).start()

    def _open_second(
        self, log: FollowedLog | None, load: Callable[[str, int | None], LoadedRevision], name: str
    ) -> ServedRevision:
        if log is None:
            return device.open_served(load(name, None), self.options.device)
        return log.open_second(partial(load, name), self._open_changing)

    def _open_changing(self, loaded: LoadedRevision, replica: LivingRevision) -> ServedRevision:
        from gnnserve_cli.compiling import compile_for_changes  # noqa: PLC0415

        compile_for_changes(loaded, note)
        return device.open_served(loaded, self.options.device, replica=replica)

    def follow_log(self) -> FollowedLog | None:
        """Open the log of changes; None: the graph does not change."""
        if self.options.updates is None:
            return None
        # Most servers have no log.
        from gnnserve_worker.pods.followed_log import FollowedLog  # noqa: PLC0415

        spec = self.service.spec
        return FollowedLog(
            self.options.updates,
            keeps_features=spec.embeddings is not None and spec.embeddings.index,
            refresh=None if spec.updates is None else spec.updates.refresh_budget,
        )

    def open(self, log: FollowedLog | None) -> ServedRevision:
        """Open the revision, which follows this log. Raises RepositoryError where its files are damaged."""
        if log is None:
            return device.open_served(self.load(None), self.options.device)
        return log.open(self.load, self._open_changing)

    def open_again(self, log: FollowedLog | None, _revision: str) -> ServedRevision:
        return self.open(log)

    def show_opened(self, revision: ServedRevision) -> None:
        self.on_opened()
        _say_device(revision.compute.device_stats(), was_asked=self.service.spec.worker.gpu is not None)

    def offer(self, revision: ServedRevision | None, log: FollowedLog | None, problem: str) -> server.Offer:
        """`problem`: why there is no revision."""
        options, updates = self.options, None if log is None else log.updates
        settings = ServiceSettings(
            self.service.metadata.name, self.sockets.http, options.credentials, updates, self.share,
            self.sockets.grpc, options.tracing,
        )  # fmt: skip
        return server.Offer(self.service, revision, settings, problem)


def serve_routed(offered: Sequence[OfferedService]) -> None:
    """Serve until SIGINT or SIGTERM. Raises RepositoryError where no revision can be opened, and at the end where there
    is a service that none of its revisions answers for."""
    exit_on_memory_fault(lambda words: print(f"error: {words}", file=sys.stderr, flush=True), ExitCode.REPOSITORY)
    is_alone = len(offered) == 1
    logs = [of.follow_log() for of in offered]
    offers, problems = _open_all(offered, logs)
    begun: list[LocalService] = []
    with ExitStack() as loops:
        names = ["" if is_alone else of.service.metadata.name for of in offered]
        begin_routing = [
            loops.enter_context(slow_loop(of.service.spec, of.options.source, name))
            for of, name in zip(offered, names, strict=True)
        ]

        def begin(handles: Sequence[server.StartedService]) -> None:
            for of, handle, name in zip(offered, handles, names, strict=True):
                if handle.revision is None:
                    announce_unserved(of.sockets, of.options.credentials, name)
                else:
                    announce(of.sockets, handle.revision.task.first_request(), of.options.credentials, name)
            print("  Ctrl-C stops it." if is_alone else "Ctrl-C stops them.", flush=True)
            for of, log, handle, name, begin_loop in zip(offered, logs, handles, names, begin_routing, strict=True):
                if not of.revision:
                    continue
                local = LocalService(handle.served, partial(of.open_again, log), name)
                begun.append(local)
                local.begin(handle.revision, of.service.spec.routing_table(of.revision))
                of.begin_canary(handle.served, local, log)
                begin_loop(local)

        try:
            server.serve_revisions(offers, begin)
        finally:
            for local in begun:
                local.stop()
    answering = {local.name for local in begun if local.answers}
    for name, problem in problems.items():
        if name not in answering:
            raise problem


def _open_all(
    offered: Sequence[OfferedService], logs: Sequence[FollowedLog | None]
) -> tuple[list[server.Offer], dict[str, RepositoryError]]:
    """What can be offered, and by the name of its service why a revision cannot be opened. Raises RepositoryError where
    none can."""
    offers: list[server.Offer] = []
    problems: dict[str, RepositoryError] = {}
    for of, log in zip(offered, logs, strict=True):
        revision = None
        try:
            revision = of.open(log)
        except RepositoryError as error:
            if len(problems) + 1 == len(offered):
                raise
            problems[of.service.metadata.name] = error
            print(f"error: {of.service.metadata.name}: {error}", file=sys.stderr, flush=True)
        else:
            of.show_opened(revision)
        offers.append(of.offer(revision, log, str(problems.get(of.service.metadata.name, ""))))
    return offers, problems


def _say_device(stats: DeviceStats, *, was_asked: bool) -> None:
    """Name the device on standard error: a GPU always, the CPU unless there is no GPU at all and none was asked for."""
    if stats.device == ON_CPU.device:
        if stats.problem is not None and (was_asked or not stats.problem.startswith(device.NO_GPU_SEEN)):
            note(f"computing on {stats.device}: {stats.problem}")
        return
    own = {part: size for part, size in stats.memory_bytes.items() if part != _LENT}
    parts = ", ".join(f"{part} {format_bytes(size)}" for part, size in own.items())
    lent = f", and {format_bytes(stats.memory_bytes[_LENT])} of other GPUs'" if _LENT in stats.memory_bytes else ""
    # What ONNX Runtime takes for a program is not told.
    taken = f": {parts} of {format_bytes(stats.memory_budget_bytes)} of its memory{lent}" if stats.memory_bytes else ""
    note(f"computing on {stats.device}{taken}")
    note("latencies of the table above are the profile's; `gnnserve variants URL` shows those of this GPU")
    if stats.problem is not None:
        note(stats.problem)


def announce_unserved(sockets: Sockets, credentials: Credentials, name: str) -> None:
    """The address of a service that has no revision to answer from."""
    scheme = "http" if credentials.tls is None else "https"
    print(f"Not serving {name} yet: {scheme}://{_address(sockets.http)}/readyz says why", flush=True)


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
