"""The operator uses one of the two clients of the package `kubernetes`: `kubernetes.aio`.

Importing the package runs the other one, with requests, oauthlib and websocket-client: 6 MB that every operator would
hold, a tenth of its memory. kopf imports it too wherever it is installed, to recognise its objects, which no handler
here is given.
"""

from __future__ import annotations

import importlib.util
import sys

_PACKAGE = "kubernetes"
_OTHER_CLIENT = f"{_PACKAGE}.client"


def import_one_client() -> None:
    """Have the package's submodules imported without the package's own code, and the other client be one that is not
    there. To be called before kopf and `kubernetes.aio` are imported."""
    found = None if _PACKAGE in sys.modules else importlib.util.find_spec(_PACKAGE)
    if found is None:
        return
    sys.modules[_PACKAGE] = importlib.util.module_from_spec(found)
    # As an import that fails, by Python's language reference, "The module cache".
    sys.modules[_OTHER_CLIENT] = None  # type: ignore[assignment]
