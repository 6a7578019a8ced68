"""`make screenshots`: the pictures of pages in docs/images, taken anew in headless Chromium.

The worker's page shows a load that is played from a fixed seed, and the same picture each time. The other pages show
examples that are generated here (kept in build/screenshots), whose measured times differ from machine to machine.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import numpy as np
from PIL import Image
from tests.support.pages.browser import Browser, browser
from tests.support.serving.secured_worker import started
from tests.support.serving.serving import FakeWorker, service
from tests.support.serving.slow_worker import PROFILE

from gnnserve_worker.serving.metrics.load_history import INTERVAL_S, KEPT_S, LoadHistory
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.security.credentials import NO_CREDENTIALS

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
BUILT = ROOT / "build" / "screenshots"
WIDTH = 1200
_COLOURS = 128
_OBJECTIVE_MS = 60.0
_STANDING_STILL = "performance.now = () => 1e6"


def play_bursts(metrics: ServingMetrics) -> LoadHistory:
    """Count five minutes of requests with two bursts, under which faster variants answer; their history, as it is at
    the end."""
    clock_s, random = 0.0, np.random.default_rng(7)
    history = LoadHistory(metrics.counters, lambda: clock_s)
    names = [variant.name for variant in PROFILE.variants]
    for _ in range(round(KEPT_S / INTERVAL_S) + 1):
        history.take()
        burst = sum(np.exp(-(((clock_s - middle_s) / 28) ** 2)) for middle_s in (95, 225))
        asked = random.poisson(INTERVAL_S * (25 + 190 * burst))
        likely = np.array([1, 0.25 + 2 * burst, 3 * burst**2, 9 * burst**4])
        for place in random.choice(len(names), asked, p=likely / likely.sum()):
            took_ms = float(random.gamma(6, (22 + 26 * burst) / 6 / (1 + 0.35 * place)))
            metrics.counters.observe_answer(names[place], took_ms / 3, took_ms, _OBJECTIVE_MS)
        for _ in range(random.poisson(INTERVAL_S * 9 * max(0.0, burst - 0.9))):
            metrics.counters.count_refused("QueueFull")
        metrics.counters.offered_seeds += int(12 * asked)
        clock_s += INTERVAL_S
    clock_s -= INTERVAL_S / 2
    return history


def take(tab: Browser, name: str, *, height: int | None = None) -> None:
    """`height`: of the first screen in pixels; None: the whole page."""
    file = IMAGES / f"{name}.png"
    tab.screenshot(file, is_whole=height is None)
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 1024:.0f} KiB")


def take_page(tab: Browser) -> None:
    worker = FakeWorker(profile=PROFILE)
    with started(NO_CREDENTIALS, of=worker) as running:
        revision, metrics = worker.revision(), running.served.metrics
        table = service({"latencyMs": _OBJECTIVE_MS}).spec.routing_table(revision.manifest.revision)
        running.served.switch(revision, table, 0.0)
        metrics.history = play_bursts(metrics)
        script = tab.command("Page.addScriptToEvaluateOnNewDocument", source=_STANDING_STILL)
        tab.open(f"http://127.0.0.1:{running.port}/")
        tab.wait_for("points.length > 10 && document.querySelectorAll('#rows tr').length === 4")
        take(tab, "page")
        tab.command("Page.removeScriptToEvaluateOnNewDocument", **script)


def with_recommendations(example: str) -> str:
    """A copy of the example whose service recommends nodes too."""
    manifest = BUILT / Path(example).name
    manifest.write_text(f"{(ROOT / example).read_text()}  embeddings: {{}}\n")
    return str(manifest)


@contextmanager
def served(manifest: str) -> Iterator[tuple[Path, str]]:
    """The repository in which the example is generated, and the address at which it is served."""
    repository = BUILT / Path(manifest).stem
    program = [sys.executable, "-m", "gnnserve_cli", "run", manifest, "--repository", str(repository), "--port", "0"]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = iter(process.stdout or ())
            yield repository, next(line for line in said if line.startswith("Serving on ")).split()[-1]
        finally:
            process.terminate()


def take_node(tab: Browser, url: str, node: str, name: str) -> None:
    tab.open(f"{url}/explore#node={quote(node)}")
    tab.wait_for("document.querySelectorAll('#neighbours tr').length > 0")
    tab.wait_for("!/^(Searching.*|\\s*)$/.test(document.querySelector('#index').textContent)")
    tab.wait_for("document.querySelectorAll('#answers tr').length === served.profile.variants.length")
    take(tab, name)


def main() -> None:
    BUILT.mkdir(parents=True, exist_ok=True)
    with browser() as tab:
        tab.command("Emulation.setScrollbarsHidden", hidden=True)
        tab.resize(WIDTH)
        tab.prefer("light")
        take_page(tab)
        with served(with_recommendations("examples/digits.yaml")) as (repository, url):
            take_node(tab, url, "17", "explore")
            report = BUILT / "report.html"
            program = [sys.executable, "-m", "gnnserve_cli", "report", str(repository), "--out", str(report)]
            subprocess.run(program, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            tab.resize(920, 760)
            tab.open(report.as_uri())
            tab.wait_for("document.readyState === 'complete' && document.querySelector('footer') !== null")
            take(tab, "report", height=760)
            tab.resize(WIDTH)
        with served("examples/reviews/reviews.yaml") as (_, url):
            take_node(tab, url, "user/u3", "explore-several-types")


if __name__ == "__main__":
    main()
