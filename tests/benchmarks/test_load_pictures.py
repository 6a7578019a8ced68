"""Pictures of what `gnnserve load --json` prints."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from benchmarks.answers.load_pictures import draw
from tests.support.machine.fake_server import Asked, Told, answer_like_gnnserve, fake_server, refusal
from typer.testing import CliRunner

from gnnserve_cli.main import app


def printed(*arguments: str, refuses: bool = False) -> Any:
    def answer(asked: Asked) -> Told:
        refused = refuses and asked.method == "POST"
        return refusal(429, "QueueFull", "full") if refused else answer_like_gnnserve(asked)

    with fake_server(answer) as server:
        result = CliRunner().invoke(app, ["load", server.url, *arguments, "--json"])
    return json.loads(result.stdout)


def texts(path: Path) -> str:
    """matplotlib draws letters as shapes, and says in a comment what they spell."""
    parser = ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))  # noqa: S314 - our own
    root = ET.parse(path, parser).getroot()  # noqa: S314
    return "\n".join(node.text.strip() for node in root.iter() if callable(node.tag) and node.text)


def test_a_run_is_drawn_with_every_variant_and_the_objective(tmp_path: Path) -> None:
    found = printed("--scenario", "flash", "--rate", "300", "--duration", "0.5", "--objective-ms", "50")
    for name in ("run.svg", "run.PNG"):
        draw(tmp_path / name, found)
    assert (tmp_path / "run.PNG").read_bytes().startswith(b"\x89PNG")
    said = texts(tmp_path / "run.svg")
    for text in ("flash: 300 requests/s of 1 seed at the peak", "within 50 ms", *found["variants"], "offered", "p99"):
        assert text in said


def test_a_run_without_an_answer_is_drawn(tmp_path: Path) -> None:
    draw(tmp_path / "run.svg", printed("--rate", "50", "--duration", "0.2", refuses=True))
    assert "Requests not refused, in %: no latency is asked for" in texts(tmp_path / "run.svg")


def test_a_sweep_is_drawn(tmp_path: Path) -> None:
    draw(tmp_path / "sweep.svg", printed("--sweep", "1,2", "--duration", "0.1", "--latency-ms", "50"))
    said = texts(tmp_path / "sweep.svg")
    for text in ("Answers per second", "Latency in ms", "Where the mean latency goes", "objective", "connections"):
        assert text in said, text


def test_a_closed_loop_has_no_course_over_time(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="give `gnnserve load` a --rate, or a --sweep"):
        draw(tmp_path / "run.svg", printed("--duration", "0.1"))
