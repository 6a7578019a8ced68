"""Opening the decoder of a revision that scores links."""

from __future__ import annotations

from pathlib import Path

import safetensors.numpy
from safetensors import SafetensorError

from gnnserve_api.errors import DamagedError
from gnnserve_api.links import LinksManifest
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
        return _covering(build_decoder(links.decoder, weights, links.dimensions), links)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        problem = f"does not hold the weights of the decoder: {error}"
        raise DamagedError(path, problem, checks.remedy(folder)) from error


def _covering(decoder: LinkDecoder, links: LinksManifest) -> LinkDecoder:
    """The decoder. ValueError: it lacks nodes at an end of links."""
    nodes, folding = max(links.first.end, links.second.end), decoder.folding
    if folding is not None and len(folding.shares) < nodes:
        raise ValueError(f"weights 'shares' are {len(folding.shares)} numbers, expected one for each of {nodes} nodes")
    return decoder
