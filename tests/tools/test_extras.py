"""Extras of `pyproject.toml`, and what is said where one of their packages is missing."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

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
NOT_IMPORTED = {"mkl"}
"""Distributions that are no Python packages."""


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra.name)
def test_an_extra_names_the_packages_that_it_declares(extra: Extra) -> None:
    declared = [Requirement(line) for line in DECLARED[extra.name]]
    included = set().union(*(of.extras for of in declared if of.name == "gnnserve"))
    assert included == {of.name for of in extra.includes}
    packages = {package for one in (extra, *extra.includes) for package in one.packages}
    of_package = metadata.packages_distributions()
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


def run_cli(extra: str, folder: Path, *words: str) -> tuple[int, str]:
    folder.mkdir(exist_ok=True)
    program = f"import sys; sys.argv = {['gnnserve', *words]!r}; from gnnserve_cli.__main__ import main; main()"
    done = run_declared(extra, folder, program)
    return done.returncode, done.stdout + done.stderr


def test_the_bare_package_says_which_extra_brings_the_command(tmp_path: Path) -> None:
    code, said = run_cli("client", tmp_path, "--version")
    assert code == 4
    assert re.fullmatch(
        r"error: gnnserve needs \w+, which is not installed; `pip install 'gnnserve\[cli\]'` brings it\n", said
    )


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("run examples/digits.yaml", GENERATE),
        ("generate examples/digits.yaml", GENERATE),
        ("plan examples/digits.yaml", GENERATE),
        ("graph inspect examples/digits.yaml", GENERATE),
        ("changes compact examples/digits-updates.yaml", GENERATE),
        ("serve examples/digits.yaml", SERVE),
        ("rollback examples/digits.yaml", SERVE),
        ("model inspect model.safetensors", SERVE),
    ],
)
def test_commands_that_compute_say_which_extra_they_need(words: str, extra: Extra, tmp_path: Path) -> None:
    code, said = run_cli("cli", tmp_path, *words.split())
    assert code == 4, said
    assert said.startswith("error: this needs ")
    assert said.endswith(f", which is not installed; {extra.remedy}\n")
    assert "\n" not in said[:-1]


def test_commands_that_ask_a_server_need_the_command_line_alone(tmp_path: Path) -> None:
    code, said = run_cli("cli", tmp_path, "validate", "examples/digits.yaml")
    assert code == 0, said
    code, said = run_cli("cli", tmp_path, "predict", "http://127.0.0.1:9", "--nodes", "1")
    assert (code, "pip install" in said) == (4, False), said


def test_where_nothing_trains_a_generation_says_so_before_it_reads_the_graph(tmp_path: Path) -> None:
    words = ("generate", "examples/digits.yaml", "--repository", str(tmp_path / "kept"))
    code, said = run_cli("serve", tmp_path / "packages", *words)
    assert code == 4, said
    assert said.startswith("error: training: needs torch, which is not installed; `pip install 'gnnserve[generate]'`")


SERVED = """
import json, os, signal, socket, sys, threading, time, urllib.error, urllib.request

manifest, repository, asked = sys.argv[1:] = {arguments!r}
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
url = f"http://127.0.0.1:{{port}}"


def answer(path, body=None):
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, body), timeout=60) as reply:
            return reply.read().decode()
    except urllib.error.URLError:
        return None


def ask():
    try:
        deadline_s = time.monotonic() + 240
        while answer("/readyz") is None and time.monotonic() < deadline_s:
            time.sleep(0.05)
        print("ANSWER", answer("/v1/predict", asked.encode()), flush=True)
        refused = {{"torch", "torch_geometric", "triton", "pyarrow", "sklearn"}}
        print("MODULES", json.dumps(sorted(refused & sys.modules.keys())), flush=True)
    finally:
        os.kill(os.getpid(), signal.SIGINT)


from gnnserve_cli.__main__ import main

sys.argv = ["gnnserve", "serve", manifest, "--repository", repository, "--port", str(port)]
threading.Thread(target=ask).start()
main()
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("made", "asked", "told"),
    [
        ("04c9885/plain", {"nodes": [0, 7]}, "labels"),
        ("04c9885/types", {"nodes": ["user/0", 7]}, "labels"),
        ("04c9885/buys", {"pairs": [["user/0", "item/17"]]}, "probabilities"),
    ],
)
def test_a_service_is_served_where_there_is_no_torch(
    made: str, asked: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """Revisions of an earlier release: of one type, of several, of links."""
    folder, packages = tmp_path / "golden", tmp_path / "packages"
    shutil.copytree(ROOT / "tests/golden" / made, folder)
    packages.mkdir()
    arguments = [str(folder / "manifest.yaml"), str(folder / "repository"), json.dumps(asked)]
    done = run_declared("serve", packages, SERVED.format(arguments=arguments))
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("ANSWER", "MODULES")))
    assert json.loads(lines["MODULES"]) == []
    assert json.loads(lines["ANSWER"])[told], done.stderr
