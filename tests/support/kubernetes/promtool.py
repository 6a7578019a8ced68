"""Prometheus' promtool: built once, run over files of rules."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.layout import Layout
from tests.cluster.harness.prometheus import RULES, unpack
from tests.support.lacks import lacks_root


@cache
def promtool() -> Path:
    try:
        return unpack(Layout.of_this_machine()) / "promtool"
    except HarnessError as error:
        lacks_root(f"promtool is needed: {error}")


def run_promtool(folder: Path, series: Mapping[str, str], checks: Mapping[str, Any]) -> None:
    """Fails with what promtool found instead."""
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        **checks,
    }
    document = {"rule_files": [str(file) for file in RULES], "evaluation_interval": "1m", "tests": [test]}
    file = folder / "test.json"  # which is YAML
    file.write_text(json.dumps(document))
    done = subprocess.run([promtool(), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
