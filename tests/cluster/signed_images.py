"""`make test-signatures`: the operator's image and the chart are signed by the very commands of
.github/workflows/publish.yml, in a registry of this machine.

Only the key is another: the workflow signs as itself (Fulcio's certificates) and enters signatures into a public log
(Rekor), and neither can be reached from here. A key is made for each run and thrown away.
"""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.cluster.harness import binaries, images
from tests.cluster.harness.client import wait_for
from tests.cluster.harness.commands import HarnessError, output_of
from tests.cluster.harness.components import REPOSITORY
from tests.cluster.harness.layout import Layout
from tests.cluster.harness.session import why_not
from tests.support.lacks import lacks_root

JOBS = yaml.safe_load((REPOSITORY / ".github/workflows/publish.yml").read_text())["jobs"]
WITH_KEY = 'cosign() { command cosign "$@" --key "$KEY" --tlog-upload=false; }\n'


@dataclass(frozen=True, slots=True)
class Signing:
    """A registry, and the programs that push to it, sign and verify."""

    registry: str
    """Host and port."""
    environment: dict[str, str]
    layout: Layout

    def program(self, *words: str | Path) -> str:
        return output_of(self.layout.bin / words[0], *words[1:], env=self.environment)

    def make_key(self, prefix: Path) -> Path:
        """The private key; the public one lies beside it."""
        self.program("cosign", "generate-key-pair", "--output-key-prefix", prefix)
        return prefix.with_suffix(".key")

    def run(self, command: str, key: Path, folder: Path, **variables: str) -> None:
        """Run a command of the workflow, but that cosign signs with that key."""
        environment = {**self.environment, "KEY": str(key), "REGISTRY": self.registry, **variables}
        output_of("bash", "-euc", f'cd "{folder}"\n{WITH_KEY}{command}', env=environment)

    def digest(self, name: str) -> str:
        return self.program("crane", "digest", name).strip()

    def why_not_verified(self, key: Path, name: str) -> str:
        """What cosign says against the signature; empty: it is good."""
        try:
            self.program("cosign", "verify", "--key", key.with_suffix(".pub"), "--insecure-ignore-tlog", name)
        except HarnessError as error:
            return str(error)
        return ""


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signing]:
    if reason := why_not():
        lacks_root(reason)
    layout = Layout.of_this_machine()
    binaries.build(layout, ("cosign", "crane", "helm"))
    folder = tmp_path_factory.mktemp("registry")
    log = folder / "log"
    with (
        log.open("w") as out,
        subprocess.Popen(
            [layout.bin / "crane", "registry", "serve", "--address", "127.0.0.1:0", "--disk", folder], stderr=out
        ) as serving,
    ):
        try:
            port = wait_for("the registry", lambda: re.search(r"serving on port (\d+)", log.read_text()))[1]
            # Neither this user's logins nor those roots of trust that cosign keeps at home.
            home = {"HOME": str(folder), "DOCKER_CONFIG": str(folder), "COSIGN_PASSWORD": "thrown away"}
            path = f"{layout.bin}:{os.environ['PATH']}"
            yield Signing(f"127.0.0.1:{port}", {**os.environ, **home, "PATH": path}, layout)
        finally:
            serving.terminate()


@pytest.fixture(scope="module")
def signed(signing: Signing, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of an image of two processors, as it is published, and the key by which it was signed."""
    folder = tmp_path_factory.mktemp("signed")
    name = f"{signing.registry}/gnnserve/operator:1.0.0"
    images.build(signing.layout, images.OPERATOR_IMAGE, "operator")
    images.push(signing.layout, images.OPERATOR_IMAGE, f"{name}-amd64")
    _push_tiny(signing, folder, f"{name}-arm64", "another processor's")
    signing.program("crane", "index", "append", "-m", f"{name}-amd64", "-m", f"{name}-arm64", "-t", name)
    key = signing.make_key(folder / "release")
    (command,) = (line for line in JOBS["join"]["steps"][-1]["run"].splitlines() if line.startswith("cosign sign"))
    signing.run(command, key, folder, IMAGE=name, digest=signing.digest(name))
    return name, key


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("processor", ["", "-amd64", "-arm64"], ids=["both", "amd64", "arm64"])
def test_a_signature_is_verified_by_its_key_alone(
    processor: str, signing: Signing, signed: tuple[str, Path], tmp_path: Path
) -> None:
    name, key = signed
    assert signing.why_not_verified(key, f"{name}{processor}") == ""
    said = signing.why_not_verified(signing.make_key(tmp_path / "other"), f"{name}{processor}")
    assert "invalid signature" in said


@pytest.mark.timeout(3600)
def test_a_changed_image_is_not_signed_even_with_the_signature_of_the_one_before(
    signing: Signing, signed: tuple[str, Path], tmp_path: Path
) -> None:
    name, key = signed
    other = name.replace("1.0.0", "1.0.1")
    _push_tiny(signing, tmp_path, other, "changed")
    assert "no signatures found" in signing.why_not_verified(key, other)

    repository = name.rpartition(":")[0]
    before, after = (signing.digest(image).replace(":", "-") for image in (name, other))
    signing.program("crane", "copy", f"{repository}:{before}.sig", f"{repository}:{after}.sig")
    assert "digest" in signing.why_not_verified(key, other)


@pytest.mark.timeout(3600)
def test_the_chart_is_pushed_and_signed(signing: Signing, tmp_path: Path) -> None:
    version = yaml.safe_load((REPOSITORY / "charts/gnnserve/Chart.yaml").read_text())["version"]
    key = signing.make_key(tmp_path / "release")
    pushing, command = JOBS["chart"]["steps"][-1]["run"].splitlines()[-2:]
    signing.program("helm", "package", REPOSITORY / "charts/gnnserve", "--destination", tmp_path)
    signing.run(f"{pushing.replace('helm push', 'helm push --plain-http')}\n{command}", key, tmp_path, VERSION=version)
    assert signing.why_not_verified(key, f"{signing.registry}/charts/gnnserve:{version}") == ""


def _push_tiny(signing: Signing, folder: Path, name: str, content: str) -> None:
    """Push an image of one file."""
    (folder / "content").write_text(content)
    with tarfile.open(folder / "layer.tar", "w") as layer:
        layer.add(folder / "content", "content")
    signing.program("crane", "append", "--oci-empty-base", "-f", folder / "layer.tar", "-t", name)
