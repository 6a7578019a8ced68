"""Certificates for tests, made by the `openssl` of the machine."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

from gnnserve_worker.serving.security.tls import KeyPairFiles


def make_key_pair(folder: Path, name: str = "localhost", *, days: int = 2, also: str = "") -> KeyPairFiles:
    """Signed by itself. `days` below 0: expired before it was made. `also`: further names, as in `DNS:a.b`."""
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key, request = folder / "tls.crt", folder / "tls.key", folder / "request"
    extensions = folder / "extensions"
    names = f"DNS:{name},IP:127.0.0.1" + (f",{also}" if also else "")
    extensions.write_text(f"subjectAltName={names}\nbasicConstraints=critical,CA:TRUE\n")
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
    _openssl("req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", request)
    _openssl(
        "x509", "-req", "-in", request, "-signkey", key, "-days", days, "-extfile", extensions, "-out", certificate
    )
    return KeyPairFiles(certificate, key)


def encrypt_key(key: Path, target: Path) -> None:
    _openssl("ec", "-in", key, "-aes256", "-passout", "pass:correct horse", "-out", target)


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificate)


def serial_of(certificate: bytes) -> str:
    """Serial number of a certificate in DER, to tell two apart."""
    told = subprocess.run(
        ["openssl", "x509", "-inform", "DER", "-noout", "-serial"], input=certificate, capture_output=True, check=True
    )
    return told.stdout.decode().strip()


def serial_in(certificate: Path) -> str:
    return serial_of(ssl.PEM_cert_to_DER_cert(certificate.read_text()))


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], capture_output=True, check=True)
