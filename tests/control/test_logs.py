"""Log lines name their object, in JSON or in text; nobody else's chatter is among them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from tests.support.operator.operator import KEY

from gnnserve_operator.logs import OnceInAWhile, configure_logging
from gnnserve_operator.settings import LogFormat, LogLevel


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], root.level = handlers, level


def test_a_json_line_has_time_level_and_object(stream: io.StringIO) -> None:
    configure_logging(LogFormat.JSON, LogLevel.INFO, stream)
    logging.getLogger("gnnserve_operator.apply").info(
        "created %s", "Service digits", extra=KEY.about(uid="u1", reason="Applied", duration_s=0.0123)
    )
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "INFO", "logger": "gnnserve_operator.apply", "message": "created Service digits",
        "object": {"namespace": "default", "name": "digits", "uid": "u1"}, "reason": "Applied", "durationMs": 12.3,
    }  # fmt: skip


def test_a_failure_carries_its_stack_on_one_line(stream: io.StringIO) -> None:
    configure_logging(LogFormat.JSON, LogLevel.INFO, stream)
    try:
        json.loads("{}")["spec"]
    except KeyError:
        logging.getLogger("x").exception("a mistake")
    (line,) = stream.getvalue().splitlines()
    assert "KeyError: 'spec'" in json.loads(line)["stack"]


def test_a_line_of_text_begins_with_the_object(stream: io.StringIO) -> None:
    configure_logging(LogFormat.TEXT, LogLevel.INFO, stream)
    logging.getLogger("x").warning("no quota left", extra=KEY.about())
    logging.getLogger("x").info("listening")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("WARNING default/digits: no quota left")
    assert second.endswith("INFO    listening")


def test_libraries_say_the_same_once_in_a_while() -> None:
    now = [0.0]
    once = OnceInAWhile(30, lambda: now[0])

    def passes(name: str, level: int = logging.ERROR) -> bool:
        return once.filter(logging.LogRecord(name, level, "", 0, "watch of %s failed", ("jobs",), None))

    assert [passes("kopf._cogs.clients.watching") for _ in range(12)] == [True] + [False] * 11
    assert passes("kopf._cogs.clients.watching", logging.WARNING), "another level is another matter"
    assert all(passes("gnnserve_operator.loop") for _ in range(3)), "our own lines are never left out"
    now[0] = 31
    assert passes("kopf._cogs.clients.watching")


def test_libraries_are_heard_from_warning_on(stream: io.StringIO) -> None:
    configure_logging(LogFormat.TEXT, LogLevel.DEBUG, stream)
    for name in ("kopf.objects", "aiohttp.access", "asyncio"):
        logging.getLogger(name).info("chatter of %s", name)
        logging.getLogger(name).warning("warning of %s", name)
    assert stream.getvalue().count("chatter") == 0
    assert stream.getvalue().count("warning of") == 3
