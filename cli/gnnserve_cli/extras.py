"""Packages of the extra `pictures`, which brings numpy and 60 MB: only commands that draw need it."""

from __future__ import annotations

import importlib.util

from gnnserve_api.errors import ResourceError


def require_pictures(option: str, *packages: str) -> None:
    """Before the work that the option's picture or page is of: its end is too late to learn that there will be none."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ResourceError(
                f"{option}: needs {package}, which is not installed; `pip install 'gnnserve[pictures]'` brings it"
            )
