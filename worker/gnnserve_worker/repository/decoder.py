"""Opening the decoder of a revision that scores links."""

from __future__ import annotations

from pathlib import Path

import safetensors.numpy
from safetensors import SafetensorError

from gnnserve_api.errors import DamagedError
from gnnserve_api.repository import RevisionManifest
from gnnserve_worker.models.decoder import LinkDecoder, build_decoder
from gnnserve_worker.repository import checks, paths


def open_decoder(folder: Path, manifest: RevisionManifest | None) -> LinkDecoder | None:
    """`folder`: the revision's, whose files were verified; `manifest`: None while it is staged. None: its nodes are
    classified. Raises DamagedError."""
    links = None if manifest is None else manifest.links
    if links is None:
        return None
    path = folder / (links.weights or paths.REVISION_COMMIT)
    try:
        weights = {} if links.weights is None else safetensors.numpy.load(path.read_bytes())
        return build_decoder(links.decoder, weights, links.dimensions)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        problem = f"does not hold the weights of the decoder: {error}"
        raise DamagedError(path, problem, checks.remedy(folder)) from error
