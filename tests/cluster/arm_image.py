"""`make test-image-arm`: images for arm64, from the same Dockerfile, whose programs QEMU runs.

Of worker-cpu its packages, which are imported, and no kernels: QEMU is too slow to compile these, and without them
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

IMPORTED = {
    "operator": "gnnserve_operator.main",
    # Packages of `serve`, `programs` and `tracing`; not ONNX Runtime, which QEMU ends by a segmentation fault.
    "serve-packages": "numba, numpy, scipy.sparse, faiss, fastapi, grpc, uvloop, psycopg, opentelemetry.sdk.trace",
}
"""What is imported in the image of each target."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", IMPORTED)
def test_an_image_is_built_for_arm64_and_what_it_has_is_imported(target: str) -> None:
    if reason := why_not():
        lacks_root(reason)
    own = Layout.of_this_machine()
    layout = replace(own, root=own.root / "arm64")
    image = f"localhost/gnnserve/{target}:arm64"
    with arm64_programs(own):
        images.build(layout, image, target, "arm64")
        print(f"{image}: {images.size(layout, image)}")
        program = f"import platform, {IMPORTED[target]}; print(platform.machine())"
        assert images.run(layout, image, "python", "-c", program).strip() == "aarch64"
    assert images.architecture_of(layout, image) == "arm64"
