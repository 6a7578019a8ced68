"""Packages of the extra `pictures`, which brings numpy and 60 MB: only commands that draw need it."""

from __future__ import annotations

import importlib.util

from gnnserve_api.errors import ResourceError


def require_pictures(option: str, *packages: str) -> None:
    """Raises where pictures cannot be made. It is called before the work that they show, whose end is too late to learn
    that."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ResourceError(
                f"{option}: needs {package}, which is not installed; `pip install 'gnnserve[pictures]'` brings it"
            )
