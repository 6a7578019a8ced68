"""Extras of `pyproject.toml`, and what is said where one of their packages is missing."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
import tomllib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.support.operator.declared_environment import (
    ROOT,
    declared_requirements,
    required_distributions,
    run_declared,
)
from tools.audit import IMAGES

from gnnserve_api.errors import ResourceError
from gnnserve_api.extras import EXTRAS, GENERATE, GPU, PROGRAMS, SERVE, TRACING, Extra, lack_of_package

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
distributions_by_package = cache(metadata.packages_distributions)
NOT_IMPORTED = {"mkl"}
"""Distributions that are no Python packages."""


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra.name)
def test_an_extra_names_the_packages_that_it_declares(extra: Extra) -> None:
    declared = [Requirement(line) for line in DECLARED[extra.name]]
    included = set().union(*(of.extras for of in declared if of.name == "gnnserve"))
    assert included == {of.name for of in extra.includes}
    packages = {package for one in (extra, *extra.includes) for package in one.packages}
    of_package = distributions_by_package()
    brought = {canonicalize_name(of) for package in packages for of in of_package[package.partition(".")[0]]}
    assert {canonicalize_name(of.name) for of in declared} - {"gnnserve"} - NOT_IMPORTED <= brought


def test_every_declared_extra_is_known() -> None:
    assert {extra.name for extra in EXTRAS} == DECLARED.keys() - {"all"}


def test_all_brings_all() -> None:
    everything = {of.name for of in declared_requirements("all")}
    assert {of.name for extra in EXTRAS for of in declared_requirements(extra.name)} == everything


def test_one_package_has_one_range_of_versions_in_all_extras() -> None:
    ranges: dict[str, set[str]] = {}
    for lines in DECLARED.values():
        for wanted in map(Requirement, lines):
            ranges.setdefault(wanted.name, set()).add(str(wanted.specifier))
    assert {name: found for name, found in ranges.items() if len(found) > 1} == {}


@pytest.mark.parametrize(("target", "extras"), IMAGES.items())
def test_an_image_installs_the_extras_that_are_audited(target: str, extras: tuple[str, ...]) -> None:
    assert installed_by(target) == set(extras)


def installed_by(target: str) -> set[str]:
    """Extras that a target of the Dockerfile installs, or that the stages do which it begins with or copies from."""
    text = (ROOT / "Dockerfile").read_text()
    stages = {name: (base, body) for base, name, body in re.findall(
        r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL)}  # fmt: skip
    if target not in stages:
        return set()
    base, body = stages[target]
    copied = re.findall(r"COPY --from=(\S+) /opt/", body)
    own = {extra for found in re.findall(r"'(?:\.|/src)\[([a-z,]+)\]'", body) for extra in found.split(",")}
    return own.union(*map(installed_by, (base, *copied)))


def test_images_have_the_targets_that_messages_name() -> None:
    assert {extra.image for extra in EXTRAS if extra.image} <= IMAGES.keys()


def test_serving_needs_no_torch() -> None:
    brought = required_distributions(SERVE.name).keys()
    assert brought.isdisjoint({"torch", "torch-geometric", "triton", "pyarrow", "scikit-learn"})


# What is said


def test_the_first_missing_package_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(ResourceError) as raised:
        GENERATE.require("training")
    assert str(raised.value) == (
        "training: needs torch_geometric, which is not installed; `pip install 'gnnserve[generate]'` brings it, and in "
        "a cluster an image of target `generate`"
    )
    GENERATE.require("training", "torch")


@pytest.mark.parametrize(
    ("name", "extra"),
    [("torch", GENERATE), ("triton", GPU), ("onnx", PROGRAMS), ("opentelemetry", TRACING), ("numba", SERVE)],
)
def test_an_import_that_fails_says_what_brings_its_package(
    name: str, extra: Extra, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    said = lack_of_package(ModuleNotFoundError(f"No module named {name!r}", name=name))
    assert said is not None
    assert said.endswith(f"which is not installed; {extra.remedy}")


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'torch.gone'", name="torch.gone"),
        ModuleNotFoundError("No module named 'users_own'", name="users_own"),
        ImportError("torch cannot be loaded"),
        ModuleNotFoundError("said by hand"),
    ],
    ids=["a part of one that is there", "of no extra", "it is there, and broken", "without a name"],
)
def test_other_failures_of_imports_are_not_taken_for_a_missing_package(error: ImportError) -> None:
    assert lack_of_package(error) is None


# As a user meets it: environments that have one extra alone


COMMANDS = """
import json, os, sys
from gnnserve_cli.__main__ import main

for words in {commands!r}:
    read, write = os.pipe()
    if os.fork() == 0:
        os.dup2(write, 1)
        os.dup2(write, 2)
        sys.argv = ["gnnserve", *words]
        main()
        sys.exit()
    os.close(write)
    with open(read) as said:
        text = said.read()
    print(json.dumps([os.waitstatus_to_exitcode(os.wait()[1]), text]))
"""


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder with what an extra installs."""
    return cache(tmp_path_factory.mktemp)


Answered = tuple[int, str]
"""A command's exit code, and what it said."""


@pytest.fixture(scope="module")
def run_cli(folder_of: Callable[[str], Path]) -> Callable[..., list[Answered]]:
    """Run commands where one extra alone is installed, each in a process of its own that has imported the program."""

    def run(extra: str, *commands: str) -> list[Answered]:
        done = run_declared(extra, folder_of(extra), COMMANDS.format(commands=[words.split() for words in commands]))
        return [(code, said) for code, said in map(json.loads, done.stdout.splitlines())]

    return run


def test_the_bare_package_says_which_extra_brings_the_command(folder_of: Callable[[str], Path]) -> None:
    program = "import sys; sys.argv = ['gnnserve', '--version']; from gnnserve_cli.__main__ import main; main()"
    done = run_declared("client", folder_of("client"), program)
    code, said = done.returncode, done.stdout + done.stderr
    assert code == 4
    assert re.fullmatch(
        r"error: gnnserve needs \w+, which is not installed; `pip install 'gnnserve\[cli\]'` brings it\n", said
    )


COMPUTING = {
    "run examples/digits.yaml": GENERATE,
    "generate examples/digits.yaml": GENERATE,
    "plan examples/digits.yaml": GENERATE,
    "graph inspect examples/digits.yaml": GENERATE,
    "changes compact examples/digits-updates.yaml": GENERATE,
    "serve examples/digits.yaml": SERVE,
    "rollback examples/digits.yaml": SERVE,
    "model inspect model.safetensors": SERVE,
}


def test_commands_that_compute_say_which_extra_they_need(run_cli: Callable[..., list[Answered]]) -> None:
    for (code, said), (words, extra) in zip(run_cli("cli", *COMPUTING), COMPUTING.items(), strict=True):
        assert code == 4, (words, said)
        assert said.startswith("error: this needs "), words
        assert said.endswith(f", which is not installed; {extra.remedy}\n"), words
        assert "\n" not in said[:-1], words


def test_commands_that_ask_a_server_need_the_command_line_alone(run_cli: Callable[..., list[Answered]]) -> None:
    validated, asked = run_cli("cli", "validate examples/digits.yaml", "predict http://127.0.0.1:9 --nodes 1")
    assert validated[0] == 0, validated
    assert (asked[0], "pip install" in asked[1]) == (4, False), asked


def test_where_nothing_trains_a_generation_says_so_before_it_reads_the_graph(
    run_cli: Callable[..., list[Answered]], tmp_path: Path
) -> None:
    ((code, said),) = run_cli("serve", f"generate examples/digits.yaml --repository {tmp_path}/kept")
    assert code == 4, said
    assert said.startswith("error: training: needs torch, which is not installed; `pip install 'gnnserve[generate]'`")


SERVED = """
import json, os, signal, sys, threading, time, urllib.error, urllib.request

manifests, repository, asked, port = {arguments!r}


def answer(place, path, body=None):
    try:
        url = f"http://127.0.0.1:{{port + place}}{{path}}"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as reply:
            return reply.read().decode()
    except urllib.error.URLError:
        return None


def ask():
    try:
        deadline_s = time.monotonic() + 240
        for place, body in enumerate(asked):
            while answer(place, "/readyz") is None and time.monotonic() < deadline_s:
                time.sleep(0.05)
            print("ANSWER", answer(place, "/v1/predict", body.encode()), flush=True)
        refused = {{"torch", "torch_geometric", "triton", "pyarrow", "sklearn"}}
        print("MODULES", json.dumps(sorted(refused & sys.modules.keys())), flush=True)
    finally:
        os.kill(os.getpid(), signal.SIGINT)


from gnnserve_cli.__main__ import main

sys.argv = ["gnnserve", "serve", *manifests, "--repository", repository, "--port", str(port)]
threading.Thread(target=ask).start()
main()
"""


def first_free_port(count: int) -> int:
    """The first of so many ports in a row that nothing listens at."""
    while True:
        with ExitStack() as bound, suppress(OSError, OverflowError):
            first = 0
            for after in range(count):
                one = bound.enter_context(socket.socket())
                one.bind(("127.0.0.1", first + after if first else 0))
                first = first or one.getsockname()[1]
            return first


ASKED = {
    "plain": ({"nodes": [0, 7]}, "labels"),
    "types": ({"nodes": ["user/0", 7]}, "labels"),
    "buys": ({"pairs": [["user/0", "item/17"]]}, "probabilities"),
}
"""Of each service a question, and an output of it."""


@pytest.mark.timeout(300)
def test_services_are_served_where_there_is_no_torch(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    """Revisions of an earlier release: of one type, of several, of links."""
    made, repository = ROOT / "tests/golden/04c9885", tmp_path / "repository"
    for name in ASKED:
        shutil.copytree(made / name / "repository", repository, dirs_exist_ok=True)
    manifests = [str(made / name / "manifest.yaml") for name in ASKED]
    bodies = [json.dumps(body) for body, _ in ASKED.values()]
    arguments = [manifests, str(repository), bodies, first_free_port(len(ASKED))]
    done = run_declared("serve", folder_of("serve"), SERVED.format(arguments=arguments))
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    assert [json.loads(text) for word, _, text in lines if word == "MODULES"] == [[]], done.stderr
    answers = [json.loads(text) for word, _, text in lines if word == "ANSWER"]
    assert all(one[told] for one, (_, told) in zip(answers, ASKED.values(), strict=True)), done.stderr
