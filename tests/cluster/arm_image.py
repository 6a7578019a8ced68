"""`make test-image-arm`: the operator's image for arm64, from the same Dockerfile, whose programs QEMU runs.

Of the workers' images only packages are known to be there for arm64: QEMU is too slow to compile kernels, without which
nothing of a worker is tested.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cluster.harness import images
from tests.cluster.harness.emulation import arm64_programs
from tests.cluster.harness.layout import Layout
from tests.cluster.harness.session import why_not
from tests.support.lacks import lacks_root

IMAGE = "localhost/gnnserve/operator:arm64"


@pytest.mark.timeout(3600)
def test_the_operators_image_is_built_for_arm64_and_its_modules_are_imported() -> None:
    if reason := why_not():
        lacks_root(reason)
    own = Layout.of_this_machine()
    layout = replace(own, root=own.root / "arm64")
    with arm64_programs(own):
        images.build(layout, IMAGE, "operator", "arm64")
        print(f"{IMAGE}: {images.size(layout, IMAGE)}")
        program = "import platform, gnnserve_operator.main; print(platform.machine())"
        assert images.run(layout, IMAGE, "python", "-c", program).strip() == "aarch64"
    assert images.architecture_of(layout, IMAGE) == "arm64"
