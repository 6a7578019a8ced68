"""Modules that one opens: those whose functions are executed, or whose types these hold."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from tests.support.pages.pages import ROOT, read_page
from tests.support.profiles import profile
from tools.opened import Trace, follow_reconcile

from gnnserve_api.tiers import points_of

_WAKES_BESIDE = {"gnnserve_worker.serving.process.process", "gnnserve_worker.serving.process.served_service"}
"""The server looks ten times a second whether it is to end, by chance while a request is followed."""


def test_one_reconcile_takes_no_more_modules_than_the_page_says() -> None:
    told = re.search(r"one reconcile, the contract left out \| (\d+) ", read_page("architecture.md"))
    assert told is not None
    assert follow_reconcile().modules <= int(told[1])


def test_one_request_takes_no_more_modules_than_the_page_says() -> None:
    told = re.search(r"one request \| (\d+) ", read_page("architecture.md"))
    assert told is not None
    command = [sys.executable, "-m", "tools.opened", "--json", "request"]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found = json.loads(ended.stdout)["request"]
    assert len({*found["executed"], *found["held"]} - _WAKES_BESIDE) <= int(told[1])


def test_modules_of_held_types_are_opened_and_what_an_import_executes_is_not(tmp_path: Path) -> None:
    trace, measured = Trace(), profile()
    (tmp_path / "made.py").write_text("class Made: ...\n")
    made = spec_from_file_location("gnnserve_worker.made", tmp_path / "made.py")
    assert made is not None and made.loader is not None
    with trace.on():
        made.loader.exec_module(module_from_spec(made))
    assert not trace.called
    with trace.on():
        points_of(measured)
    assert "gnnserve_api.files.profile" in {kind.__module__ for kind in trace.held}
    assert "points_of" in {code.co_name for code in trace.called}
    assert trace.opened().modules == 0, "the contract is left out"
