"""The program of an embeddings Job: the index of a published revision, and rows in the databases that the spec names.

Whatever fails, the revision answers as before. A database that does not take them fails the Job, which tries again;
what is done already is found, and not made anew.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from gnnserve_api.errors import GnnserveError
from gnnserve_api.pods.change_log import URI_KEY
from gnnserve_api.pods.interface import (
    DATA_VARIABLE,
    EMBEDDED_REVISION_VARIABLE,
    EMBEDDINGS_PATH,
    MANIFEST_VARIABLE,
    REPOSITORY_VARIABLE,
    SOURCE_VARIABLE,
    PodExit,
)
from gnnserve_api.spec.embeddings import EmbeddingsSpec
from gnnserve_api.spec.paths import DataVolume
from gnnserve_worker.pods.environment import exit_of, required
from gnnserve_worker.pods.generate import leave_message, sentence_of, stop_in_order

if TYPE_CHECKING:
    from gnnserve_worker.generation.embeddings.publishing import PublishedEmbeddings


def main(environ: Mapping[str, str] = os.environ, secrets: Path = Path(EMBEDDINGS_PATH)) -> int:
    """`secrets`: folder with a folder for each sink, in which its address is."""
    signal.signal(signal.SIGTERM, stop_in_order)
    try:
        code, message = _outcome_of(_publish(environ, secrets))
    except Exception as error:  # noqa: BLE001  (whatever it was, the operator must be told)
        code, message = exit_of(error), sentence_of(error)
        if not isinstance(error, GnnserveError):
            traceback.print_exc()
        print(f"error: {message}", file=sys.stderr, flush=True)
    leave_message(environ, message)
    return code


def _outcome_of(made: PublishedEmbeddings) -> tuple[PodExit, str]:
    if not made.problems:
        return PodExit.OK, f"embeddings by {made.variant}"
    message = "; ".join(f"{name}: {problem}" for name, problem in made.problems.items())
    print(f"error: {message}", file=sys.stderr, flush=True)
    return PodExit.RESOURCE, message


def _publish(environ: Mapping[str, str], secrets: Path) -> PublishedEmbeddings:
    # Imported here: they take seconds, and a signal must find its handler before.
    from gnnserve_api.manifest import parse_manifest  # noqa: PLC0415
    from gnnserve_worker.generation.embeddings.postgres import PostgresSink  # noqa: PLC0415
    from gnnserve_worker.generation.embeddings.publishing import publish_embeddings  # noqa: PLC0415
    from gnnserve_worker.generation.source_types import types_with_columns  # noqa: PLC0415
    from gnnserve_worker.progress import LineListener  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415

    service = parse_manifest(required(environ, MANIFEST_VARIABLE), f"environment variable {MANIFEST_VARIABLE}")
    metadata, wanted = service.metadata, service.spec.embeddings or EmbeddingsSpec()
    repository = Repository(Path(required(environ, REPOSITORY_VARIABLE)), metadata.namespace, metadata.name)
    if wanted.index:
        repository.require_writable()
    sinks = {
        f"spec.embeddings.sinks[{place}]": PostgresSink(secrets / str(place) / URI_KEY, sink.postgres.view)
        for place, sink in enumerate(wanted.sinks)
        if sink.postgres is not None
    }
    base = DataVolume(Path(environ[DATA_VARIABLE]) if environ.get(DATA_VARIABLE) else None)
    source = environ.get(SOURCE_VARIABLE)
    made_by = None if source is None else parse_manifest(source, f"environment variable {SOURCE_VARIABLE}", base)
    listener = LineListener(sys.stderr, time.monotonic)
    return publish_embeddings(
        repository, f"{metadata.namespace}/{metadata.name}", required(environ, EMBEDDED_REVISION_VARIABLE),
        wanted.variant, sinks, f"gnnserve {version('gnnserve')}", listener, wants_index=wanted.index,
        types_of=None if made_by is None else lambda made: types_with_columns(made_by, repository, made, listener),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
