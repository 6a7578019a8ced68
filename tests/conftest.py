"""Settings of the process that runs the tests, made before torch and triton are loaded; and its last words."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from tests.support import campaigns, missing_data
from tests.support.machine.temporary import removed_folder
from tests.support.processor_time import ProcessorTimes

# Importing what is tested and collecting tests makes millions of objects that stay. Until then there is no garbage to
# look for, and afterwards they are not looked at any more (`pytest_collection_finish`).
gc.disable()

if not Path("/dev/nvidiactl").exists():
    # Triton's kernels then run as Python, on arrays in the host's memory.
    os.environ["TRITON_INTERPRET"] = "1"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control has what it runs behind it ignore interrupts, and programs that tests start and
    # interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "PYTEST_XDIST_WORKER" in os.environ:
    # xdist hands its own terminal's width on; in one process, what commands print here is as wide as in a file.
    os.environ.pop("COLUMNS", None)

_UNTIL_THE_END = ExitStack()
if "PYTEST_XDIST_WORKER" not in os.environ:
    _UNTIL_THE_END.enter_context(removed_folder())

# A generation measures latencies for twelve seconds otherwise, which hardly any test reads. Programs that tests start
# measure as briefly; what the variable does is in tests/worker/generation/test_generation.py.
os.environ.setdefault("GNNSERVE_PROFILE_SECONDS", "0.01")

import gnnserve_worker.generation  # noqa: E402, F401 - sets how torch's threads wait

# How long an example takes is the machine's matter: no test fails for it.
hypothesis.settings.register_profile("untimed", deadline=None, max_examples=campaigns.examples(100))
hypothesis.settings.load_profile("untimed")


# Files by their processor time, longest first, wherever they lie; all others come after them. Processes of pytest-xdist
# take whole files in this order, so that none is left with a long one at the end. Left out is what compiles on all
# processors at once (`gpu/test_kernels_compile.py`): the cluster tier begins beside these.
LONG = (
    "test_compile_kernels.py",
    "test_campaign.py",
    "test_real_graphs.py",
    "test_matrix.py",
    "test_report.py",
    "test_describe.py",
    "test_program_types_generation.py",
    "test_pods_generate.py",
    "test_pods_serve.py",
    "test_killed_at_steps.py",
    "test_program_links_living.py",
    "test_export_types.py",
    "test_payload_served.py",
    "test_repository_interrupted.py",
    "test_caching_slots.py",
    "test_run.py",
    "test_kernels_sample.py",
    "test_engine.py",
    "test_failure.py",
    "test_gpu.py",
    "test_main.py",
    "test_main_leadership.py",
    "test_faults.py",
    "test_export.py",
    "test_training.py",
    "test_generation.py",
    "test_serving_page.py",
    "test_trouble_killed.py",
    "test_kernels_gather.py",
    "test_cache.py",
)
_RANKS = {name: rank for rank, name in enumerate(LONG)}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if left_out := campaigns.left_out(items):
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _RANKS.get(item.path.name, len(LONG)))


SPENT = pytest.StashKey[ProcessorTimes]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SPENT] = ProcessorTimes()


def pytest_unconfigure() -> None:
    _UNTIL_THE_END.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[SPENT].collected()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with item.config.stash[SPENT].counting(item.nodeid):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    spent, sent = session.config.stash[SPENT], getattr(session.config, "workeroutput", None)
    if sent is not None:
        sent["processor_times"] = spent.as_sent()
    elif session.config.getoption("dist", "no") != "no":
        spent.handed_out()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[SPENT].add(getattr(node, "workeroutput", {}).get("processor_times", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = terminalreporter.stats.get("skipped", ())
    if (words := missing_data.sentence(str(report.longrepr) for report in skipped)) is not None:
        terminalreporter.section("not tested", yellow=True)
        terminalreporter.write_line(words)
    # Beside the durations, and as many.
    if (most := config.getoption("durations")) is not None:
        terminalreporter.section("processor seconds, by file and by test")
        for line in config.stash[SPENT].lines(most):
            terminalreporter.write_line(line)
