"""Fetching public files: whatever network, server and disk do, a file is whole or not there, and messages say why."""

from __future__ import annotations

import fcntl
import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.machine.file_server import FileServer, Odd, file_server
from tests.support.machine.waiting import WAIT_S

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_worker.downloads import connection, file, folder
from gnnserve_worker.downloads.connection import DownloadPatience
from gnnserve_worker.downloads.file import fetch
from gnnserve_worker.graph.sources.published_file import PublishedFile
from gnnserve_worker.progress import Progress, silent

CONTENT = b"PK\x03\x04" + bytes(range(256)) * 20_000
HASTE = DownloadPatience(connect_s=20, silence_s=20, pauses_s=(0.0, 0.0, 0.0))
PATH = "/set/file.zip"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with file_server() as running:
        running.serve("set", {"file.zip": CONTENT})
        yield running


def _wanted(server: FileServer, sha256: str | None = None, url: str = "") -> PublishedFile:
    return PublishedFile(
        "file.zip", url or f"{server.url}{PATH}", sha256, begins=b"PK\x03\x04", field="spec.graph.source.ogb"
    )


def _fetch(server: FileServer, folder: Path, sha256: str | None = None) -> Path:
    return fetch(_wanted(server, sha256), folder, silent, HASTE)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def _is_whole(folder: Path) -> bool:
    record = json.loads((folder / "file.zip.fetched.json").read_bytes())
    return (
        (folder / "file.zip").read_bytes() == CONTENT
        and record["sha256"] == _digest(CONTENT)
        and _left(folder) == ["file.zip", "file.zip.fetched.json"]
    )


# --- what is fetched and kept


def test_a_file_arrives_whole_with_its_digest_beside_it(server: FileServer, tmp_path: Path) -> None:
    assert _fetch(server, tmp_path / "new" / "folder") == tmp_path / "new" / "folder" / "file.zip"
    assert _is_whole(tmp_path / "new" / "folder")


def test_a_kept_file_is_not_fetched_again(server: FileServer, tmp_path: Path) -> None:
    _fetch(server, tmp_path)
    _fetch(server, tmp_path)

    assert server.ranges(PATH) == [None]


@pytest.mark.parametrize("harm", [
    pytest.param(lambda path: path.write_bytes(CONTENT[:-1] + b"x"), id="one byte differs"),
    pytest.param(lambda path: path.write_bytes(CONTENT[:-1]), id="cut short"),
    pytest.param(lambda path: path.unlink(), id="gone"),
    pytest.param(lambda path: path.with_name("file.zip.fetched.json").unlink(), id="no record of it"),
    pytest.param(lambda path: path.with_name("file.zip.fetched.json").write_text("{"), id="a damaged record"),
    pytest.param(lambda path: path.with_name("file.zip.fetched.json").write_text("[]"), id="a record of another kind"),
])  # fmt: skip
def test_what_is_kept_is_fetched_again_once_it_is_not_what_was_fetched(
    harm, server: FileServer, tmp_path: Path
) -> None:
    harm(_fetch(server, tmp_path))

    _fetch(server, tmp_path)

    assert _is_whole(tmp_path)
    assert len(server.fetched) == 2


def test_progress_counts_bytes_of_each_file(server: FileServer, tmp_path: Path) -> None:
    told: list[Progress] = []

    fetch(_wanted(server), tmp_path, told.append, HASTE)

    arriving = told
    assert {progress.stage for progress in arriving} == {"download file.zip"}
    assert (arriving[0].done, arriving[-1].done) == (0, len(CONTENT))
    assert {progress.total for progress in arriving} == {len(CONTENT)}
    assert arriving[-1].detail == "5 of 5 MiB"
    assert [progress.done for progress in arriving] == sorted({progress.done for progress in arriving})


def test_checking_a_large_file_has_progress(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_HASHED_BYTES", 4 << 20)
    _fetch(server, tmp_path)
    told: list[Progress] = []

    fetch(_wanted(server), tmp_path, told.append, HASTE)

    assert told == [
        Progress("check file.zip", 4 << 20, len(CONTENT), "4 of 5 MiB"),
        Progress("check file.zip", len(CONTENT), len(CONTENT), "5 of 5 MiB"),
    ]


def test_a_file_without_a_length_is_fetched_and_its_progress_ends(server: FileServer, tmp_path: Path) -> None:
    told: list[Progress] = []
    server.answer_oddly(PATH, Odd(headers={"Content-Length": ""}))

    fetch(_wanted(server), tmp_path, told.append, HASTE)

    arriving = [progress for progress in told if progress.stage == "download file.zip"]
    assert all(progress.done < progress.total for progress in arriving[:-1])
    assert (arriving[-1].done, arriving[-1].total) == (len(CONTENT), len(CONTENT))
    assert _is_whole(tmp_path)


def test_redirects_are_followed(server: FileServer, tmp_path: Path) -> None:
    server.answer_oddly("/elsewhere", Odd(status=302, headers={"Location": PATH}, body=b""))

    fetch(_wanted(server, url=f"{server.url}/elsewhere"), tmp_path, silent, HASTE)

    assert (tmp_path / "file.zip").read_bytes() == CONTENT


def test_a_proxy_of_the_environment_is_asked(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url)
    server.files["http://data.invalid/file.zip"] = CONTENT

    fetch(_wanted(server, url="http://data.invalid/file.zip"), tmp_path, silent, HASTE)

    assert (tmp_path / "file.zip").read_bytes() == CONTENT


def test_the_server_is_asked_not_to_compress(server: FileServer, tmp_path: Path) -> None:
    _fetch(server, tmp_path)

    assert server.fetched[0].encoding == "identity"


# --- broken off, and gone on with


def test_a_transfer_that_breaks_off_goes_on_where_it_was(server: FileServer, tmp_path: Path) -> None:
    server.answer_oddly(PATH, Odd(cut_after=3 << 20), Odd(status=503, body=b""))

    _fetch(server, tmp_path)

    assert _is_whole(tmp_path)
    assert server.ranges(PATH)[0] is None
    assert all(asked is not None for asked in server.ranges(PATH)[1:])


def test_without_a_way_to_tell_whether_it_is_still_the_same_file_it_begins_anew(
    server: FileServer, tmp_path: Path
) -> None:
    server.has_validators = False
    server.answer_oddly(PATH, Odd(cut_after=3 << 20))

    _fetch(server, tmp_path)

    assert _is_whole(tmp_path)
    assert server.ranges(PATH) == [None, None]


def test_a_weak_etag_says_too_little_to_go_on_by(server: FileServer, tmp_path: Path) -> None:
    server.answer_oddly(PATH, Odd(headers={"ETag": 'W/"about the same"'}, cut_after=3 << 20))

    _fetch(server, tmp_path)

    assert _is_whole(tmp_path)
    assert server.ranges(PATH) == [None, None]


def test_a_file_that_changed_in_between_is_fetched_from_its_beginning(server: FileServer, tmp_path: Path) -> None:
    server.answer_oddly(PATH, Odd(body=b"PK\x03\x04" + b"old" * (2 << 20), cut_after=3 << 20))

    _fetch(server, tmp_path)

    assert _is_whole(tmp_path)


@pytest.mark.parametrize("answer", [
    pytest.param(Odd(status=206, headers={"Content-Range": "bytes 7-9/10"}, body=b"abc"), id="another part"),
    pytest.param(Odd(status=206, body=b"abc"), id="a part of nothing"),
    pytest.param(Odd(status=416, body=b""), id="no such part"),
])  # fmt: skip
def test_a_part_that_does_not_fit_begins_anew(answer: Odd, server: FileServer, tmp_path: Path) -> None:
    server.answer_oddly(PATH, Odd(cut_after=3 << 20), answer)

    _fetch(server, tmp_path)

    assert _is_whole(tmp_path)
    assert server.ranges(PATH)[-1] is None


@pytest.mark.parametrize("has_length", [True, False], ids=["with a length", "until the connection closes"])
def test_a_part_that_ends_before_the_file_does_is_gone_on_from(
    has_length: bool, server: FileServer, tmp_path: Path
) -> None:
    shown = {"Content-Range": f"bytes {3 << 20}-{(4 << 20) - 1}/{len(CONTENT)}"}
    lengths = {} if has_length else {"Content-Length": ""}
    shorter = Odd(status=206, headers=shown | lengths, body=CONTENT[3 << 20 : 4 << 20])
    server.answer_oddly(PATH, Odd(cut_after=3 << 20), shorter)

    _fetch(server, tmp_path)

    assert _is_whole(tmp_path)
    assert server.ranges(PATH)[2] == f"bytes={4 << 20}-"


def test_a_part_of_a_file_of_unknown_length_begins_anew(server: FileServer, tmp_path: Path) -> None:
    shown = f"bytes {3 << 20}-{(4 << 20) - 1}/*"
    shorter = Odd(status=206, headers={"Content-Range": shown}, body=CONTENT[3 << 20 : 4 << 20])
    server.answer_oddly(PATH, Odd(cut_after=3 << 20), shorter)

    _fetch(server, tmp_path)

    assert _is_whole(tmp_path)
    assert server.ranges(PATH)[-1] is None


def test_what_came_before_a_break_is_not_fetched_again(server: FileServer, tmp_path: Path) -> None:
    server.answer_oddly(PATH, Odd(cut_after=700_000))

    _fetch(server, tmp_path)

    assert _is_whole(tmp_path)
    assert server.ranges(PATH) == [None, "bytes=700000-"]


def test_the_next_process_goes_on_with_what_the_last_one_left(server: FileServer, tmp_path: Path) -> None:
    server.answer_oddly(PATH, *[Odd(cut_after=3 << 20)], *[Odd(status=500, body=b"")] * 4)
    with pytest.raises(ResourceError, match="it answers 500 Internal Server Error"):
        _fetch(server, tmp_path)
    assert "file.zip" not in _left(tmp_path)

    _fetch(server, tmp_path)

    assert _is_whole(tmp_path)
    assert server.ranges(PATH)[-1] is not None


def test_attempts_are_counted_anew_while_more_arrives(server: FileServer, tmp_path: Path) -> None:
    pieces = [Odd(cut_after=1 << 20)]
    for start in range(1, 5):  # more breaks than attempts
        rest = CONTENT[start << 20 :]
        shown = f"bytes {start << 20}-{len(CONTENT) - 1}/{len(CONTENT)}"
        pieces.append(Odd(status=206, headers={"Content-Range": shown}, body=rest, cut_after=1 << 20))
    server.answer_oddly(PATH, *pieces)

    fetch(_wanted(server), tmp_path, silent, DownloadPatience(20, 20, (0.0,)))

    assert _is_whole(tmp_path)


def test_a_server_that_always_breaks_off_is_given_up(server: FileServer, tmp_path: Path) -> None:
    server.has_validators = False
    server.answer_oddly(PATH, *[Odd(cut_after=1 << 20)] * 9)

    with pytest.raises(ResourceError, match=r"file\.zip: the connection broke: .*set spec\.graph\.source\.ogb\.mirror"):
        _fetch(server, tmp_path)

    assert "file.zip" not in _left(tmp_path)
    assert len(server.fetched) == 4


def test_a_server_that_falls_silent_is_given_up(server: FileServer, tmp_path: Path) -> None:
    server.answer_oddly(PATH, *[Odd(silent_after=1000)] * 2)

    with pytest.raises(ResourceError, match=r"it said nothing for 0\.05 s; check the network"):
        fetch(_wanted(server), tmp_path, silent, DownloadPatience(connect_s=20, silence_s=0.05, pauses_s=(0.0,)))

    assert "file.zip" not in _left(tmp_path)


# --- refused


@pytest.mark.parametrize(("answer", "message"), [
    pytest.param(Odd(status=404, body=b"gone"), "it answers 404 Not Found", id="not there"),
    pytest.param(Odd(status=403, body=b"no"), "it answers 403 Forbidden", id="not allowed"),
    pytest.param(Odd(status=302, headers={"Location": "ftp://data.invalid/x"}, body=b""), "ftp", id="leads elsewhere"),
    pytest.param(Odd(headers={"Content-Encoding": "gzip"}), "encoded as gzip", id="compressed all the same"),
    pytest.param(Odd(body=b""), "it sends an empty file", id="empty"),
])  # fmt: skip
def test_what_another_attempt_would_not_change_is_told_at_once(
    answer: Odd, message: str, server: FileServer, tmp_path: Path
) -> None:
    server.answer_oddly(PATH, answer)

    with pytest.raises(ResourceError, match=message) as caught:
        _fetch(server, tmp_path)

    assert str(caught.value).startswith(f"{server.url}{PATH}: ")
    assert "set spec.graph.source.ogb.mirror to an address that has file.zip, or to a folder that it is in" in str(
        caught.value
    )
    assert len(server.fetched) == 1
    assert "file.zip" not in _left(tmp_path)


def test_redirects_in_a_circle_are_told(server: FileServer, tmp_path: Path) -> None:
    server.answer_oddly(PATH, *[Odd(status=302, headers={"Location": PATH}, body=b"")] * 30)

    with pytest.raises(ResourceError, match="it redirects in a circle"):
        _fetch(server, tmp_path)


@pytest.mark.parametrize(("name", "value"), [
    ("HTTP_PROXY", "ftp://proxy.lan:21"), ("HTTP_PROXY", "proxy:31x8"), ("ALL_PROXY", "socks5://proxy.lan:1080"),
    ("SSL_CERT_FILE", "/nonexistent/authorities.pem"),
])  # fmt: skip
def test_a_setting_of_the_environment_that_cannot_be_used_is_told(
    name: str, value: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(ResourceError, match=f"{name}.* of the environment has a value that cannot be used: "):
        _fetch(server, tmp_path)


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".lan"])
def test_a_host_that_none_can_be_called_is_told(host: str, server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"file\.zip: .*; check the network and HTTPS_PROXY, or set"):
        fetch(_wanted(server, url=f"http://{host}/file.zip"), tmp_path, silent, HASTE)


def test_no_network_is_told_without_further_attempts(tmp_path: Path) -> None:
    with file_server() as gone:
        url = f"{gone.url}{PATH}"

    with pytest.raises(ResourceError, match=r"cannot connect: .*; check the network and HTTPS_PROXY"):
        fetch(
            PublishedFile("file.zip", url, field="spec.graph.source.ogb"), tmp_path, silent
        )  # with its usual patience, which would take a minute


def test_in_a_pod_a_network_that_comes_later_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar of a mesh takes connections some seconds after the program has begun."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    with file_server() as gone:
        port, wanted = gone.port, _wanted(gone)
    pauses: list[float] = []
    monkeypatch.setattr(connection.time, "sleep", pauses.append)
    with pytest.raises(ResourceError, match="cannot connect"):
        fetch(wanted, tmp_path, silent)
    assert pauses == [1, 2, 5, 10]

    with ExitStack() as later:

        def come(_pause_s: float) -> None:
            later.enter_context(file_server(port)).serve("set", {"file.zip": CONTENT})

        monkeypatch.setattr(connection.time, "sleep", come)
        fetch(wanted, tmp_path, silent)
    assert _is_whole(tmp_path)


@pytest.mark.parametrize("answer", [
    pytest.param(
        Odd(headers={"Content-Type": "text/html; charset=utf-8"},
            body=b"<!DOCTYPE html><html><head><title>Google Drive - Quota\n exceeded</title></head></html>"),
        id="called a page",
    ),
    pytest.param(Odd(body=b"\n <HTML><head><TITLE>Google Drive - Quota exceeded</TITLE>"), id="looks like a page"),
])  # fmt: skip
def test_a_page_about_the_file_is_refused_by_its_title(answer: Odd, server: FileServer, tmp_path: Path) -> None:
    server.answer_oddly(PATH, answer)

    with pytest.raises(InputError, match=r"answers with a web page \(Google Drive - Quota exceeded\)"):
        _fetch(server, tmp_path)

    assert _left(tmp_path) in ([], ["file.zip.part", "file.zip.part.json"])
    _fetch(server, tmp_path)
    assert _is_whole(tmp_path)


def test_a_file_of_another_kind_is_refused_by_its_first_bytes(server: FileServer, tmp_path: Path) -> None:
    server.answer_oddly(PATH, Odd(body=b"not a zip"))

    with pytest.raises(InputError, match=r"begins with b'not a zi', expected b'PK"):
        _fetch(server, tmp_path)

    assert "file.zip" not in _left(tmp_path)


def test_a_pinned_file_is_taken(server: FileServer, tmp_path: Path) -> None:
    _fetch(server, tmp_path, _digest(CONTENT))

    assert _is_whole(tmp_path)


def test_another_file_than_the_pinned_one_is_refused_and_not_kept(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"spec\.graph\.source\.ogb\.sha256: .* has SHA-256 [0-9a-f]{64}, expected 0000"
    ):
        _fetch(server, tmp_path, "0" * 64)

    assert _left(tmp_path) == []


def test_a_kept_file_that_is_not_the_pinned_one_is_replaced(server: FileServer, tmp_path: Path) -> None:
    newer = CONTENT + b"newer"
    _fetch(server, tmp_path)
    server.files[PATH] = newer

    _fetch(server, tmp_path, _digest(newer))

    assert (tmp_path / "file.zip").read_bytes() == newer


def test_a_disk_without_room_is_told_before_anything_is_written(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file.shutil, "disk_usage", lambda _: _Usage(1 << 20))

    with pytest.raises(ResourceError, match=r"5 MiB are still to be fetched .* only 1,024 KiB are free"):
        _fetch(server, tmp_path)

    assert _left(tmp_path) == []


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_a_disk_that_fills_up_is_told(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file, "sync", full)

    with pytest.raises(ResourceError, match="No space left on device; make room"):
        _fetch(server, tmp_path)

    assert "file.zip" not in _left(tmp_path)


# --- interrupted, and two at once


# Programs that a shell runs in the background ignore SIGINT, and so do those that they start.
FETCH = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from gnnserve_worker.downloads.file import fetch
from gnnserve_worker.graph.sources.published_file import PublishedFile
wanted = PublishedFile("file.zip", sys.argv[1], field="spec.graph.source.ogb")
fetch(wanted, Path(sys.argv[2]), lambda progress: print(progress.stage, flush=True))
"""


def _start(server: FileServer, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, f"{server.url}{PATH}", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_process_leaves_nothing_that_is_taken_for_the_file(
    number: signal.Signals, server: FileServer, tmp_path: Path
) -> None:
    stalled = Odd(silent_after=3 << 20)
    server.answer_oddly(PATH, stalled)
    process = _start(server, tmp_path)
    assert stalled.reached.wait(WAIT_S)
    while not (tmp_path / "file.zip.part").exists():
        assert process.poll() is None
    process.send_signal(number)
    process.communicate()
    assert "file.zip" not in _left(tmp_path)

    _fetch(server, tmp_path)

    assert _is_whole(tmp_path)


def test_two_processes_fetch_a_file_once(server: FileServer, tmp_path: Path) -> None:
    processes = [_start(server, tmp_path) for _ in range(2)]
    outputs = [process.communicate() for process in processes]

    assert [process.returncode for process in processes] == [0, 0], outputs
    assert server.ranges(PATH) == [None]
    assert _is_whole(tmp_path)


def test_who_waits_for_another_process_says_so(server: FileServer, tmp_path: Path) -> None:
    told: list[str] = []
    waits = threading.Event()

    def listen(progress: Progress) -> None:
        told.append(progress.stage)
        waits.set()

    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=fetch, args=(_wanted(server), tmp_path, listen, HASTE))
        thread.start()
        assert waits.wait(WAIT_S)
        assert server.fetched == []
    thread.join()

    assert told[0] == "wait for another process that is downloading file.zip"
    assert _is_whole(tmp_path)
