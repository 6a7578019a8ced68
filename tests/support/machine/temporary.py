"""The folder of temporary files of a run of tests, which is removed with all that was left in it.

torch_geometric writes a module for each convolution that a process computes and never removes it, and programs that
are killed leave what they had.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

PREFIX = "gnnserve-tests-"
_VARIABLE = "TMPDIR"
_OF_PYTEST = "PYTEST_DEBUG_TEMPROOT"


@contextmanager
def removed_folder(environment: MutableMapping[str, str] = os.environ) -> Iterator[Path]:
    """Folder that this process and those that it starts keep temporary files in meanwhile. What pytest itself keeps of
    its last runs (`tmp_path`) stays where it was."""
    before, usual = {name: environment.get(name) for name in (_VARIABLE, _OF_PYTEST)}, tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    # Programs of other users write to it too, as they do to the system's.
    folder.chmod(0o1777)
    environment.setdefault(_OF_PYTEST, usual)
    environment[_VARIABLE] = tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = usual
        for name, value in before.items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        shutil.rmtree(folder, ignore_errors=True)
