"""A self-signed placeholder certificate, for a pod that waits for its own.

The kubelet and the operator ask over HTTPS without verifying the certificate: with the placeholder a pod can tell them
what it waits for, instead of ending and being restarted with growing delays. A client that verifies refuses it, and a
client that does not gets 503. The key is made anew at each start, and its file is removed before the function returns.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from gnnserve_api.errors import ResourceError
from gnnserve_worker.serving.security.tls import KeyPair, KeyPairFiles, load_key_pair

_TIMEOUT_S = 30
_VALID_DAYS = 3650
"""Days of validity, which are not checked; a pod may wait for long."""


def make_placeholder_pair() -> KeyPair:
    """Make the pair with the `openssl` command, which the worker's image has; Python's standard library makes no
    certificates."""
    with tempfile.TemporaryDirectory() as folder:
        files = KeyPairFiles(Path(folder) / "tls.crt", Path(folder) / "tls.key")
        command = (
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", "/CN=gnnserve-placeholder", "-days", str(_VALID_DAYS)),
            *("-keyout", str(files.key), "-out", str(files.certificate)),
        )
        try:
            subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_S)  # noqa: S603 - all of it ours
        except (OSError, subprocess.SubprocessError) as error:
            raise ResourceError(
                f"openssl: a certificate to wait with cannot be made ({error}); put a valid certificate and key there "
                "before the start, or use an image that has the command openssl"
            ) from error
        return load_key_pair(files)
