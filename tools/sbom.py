"""`make sboms`: the contents of an image as CycloneDX: Debian's packages, and its environment's Python distributions.

It runs inside the image, handed to its Python on standard input, and so imports the standard library alone.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STATUS = Path("/var/lib/dpkg/status")
"""dpkg's list of packages."""


def python_components() -> Iterator[dict[str, Any]]:
    """Distributions that this Python finds, in the order of their names."""
    found = {re.sub(r"[-_.]+", "-", of.name).lower(): of for of in importlib.metadata.distributions()}
    for name, of in sorted(found.items()):
        component: dict[str, Any] = {"type": "library", "name": name, "version": of.version}
        if licence := of.metadata.get("License-Expression"):
            component["licenses"] = [{"expression": licence}]
        yield component | {"purl": f"pkg:pypi/{name}@{of.version}"}


def debian_components(status: str) -> Iterator[dict[str, Any]]:
    """Packages that dpkg's list calls installed. `status`: its text."""
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/debian/{name}@{version}?arch={fields['Architecture']}"
            yield {"type": "library", "name": name, "version": version, "purl": purl}


def bill_of(image: str) -> dict[str, Any]:
    """The bill of materials of this file system, as an image of that name."""
    debian = debian_components(STATUS.read_text(encoding="utf-8")) if STATUS.exists() else ()
    components = [
        {"type": "application", "name": "python", "version": platform.python_version()},
        *debian,
        *python_components(),
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": image}},
        "components": [{**component, "bom-ref": f"{at}"} for at, component in enumerate(components)],
    }


if __name__ == "__main__":
    print(json.dumps(bill_of(sys.argv[1]), indent=1))
