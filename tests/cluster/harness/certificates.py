"""The node's certificates: two authorities, a certificate for each component, the key of ServiceAccount tokens."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.harness.commands import output_of
from tests.cluster.harness.layout import API_SERVICE_IP, HOST_IP, NODE, Layout

CLIENT = "extendedKeyUsage=clientAuth"
SERVER = "extendedKeyUsage=serverAuth\nsubjectAltName="
API_NAMES = "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"

# Name -> authority, subject, extensions.
CERTIFICATES = {
    "apiserver": (
        "ca",
        "/CN=kube-apiserver",
        f"{SERVER}{API_NAMES},DNS:localhost,IP:{API_SERVICE_IP},IP:{HOST_IP},IP:127.0.0.1",
    ),
    "kubelet-server": ("ca", f"/CN={NODE}", f"{SERVER}DNS:{NODE},IP:{HOST_IP},IP:127.0.0.1"),
    "kubelet": ("ca", f"/O=system:nodes/CN=system:node:{NODE}", CLIENT),
    "apiserver-kubelet-client": ("ca", "/O=system:masters/CN=kube-apiserver-kubelet-client", CLIENT),
    "controller-manager": ("ca", "/CN=system:kube-controller-manager", CLIENT),
    "scheduler": ("ca", "/CN=system:kube-scheduler", CLIENT),
    "kube-proxy": ("ca", "/CN=system:kube-proxy", CLIENT),
    "coredns": ("ca", "/CN=system:coredns", CLIENT),
    "admin": ("ca", "/O=system:masters/CN=admin", CLIENT),
    "front-proxy-client": ("front-proxy-ca", "/CN=front-proxy-client", CLIENT),
}


def make(layout: Layout) -> None:
    layout.pki.mkdir(parents=True, exist_ok=True)
    layout.pki.chmod(0o700)
    for authority in ("ca", "front-proxy-ca"):
        _authority(layout.pki / authority)
    for name, (authority, subject, extensions) in CERTIFICATES.items():
        _certificate(layout.pki / name, layout.pki / authority, subject, extensions)
    key, public = layout.pki / "sa.key", layout.pki / "sa.pub"
    if not public.exists():
        _key(key)
        output_of("openssl", "pkey", "-in", key, "-pubout", "-out", public)


def _key(path: Path) -> None:
    # Elliptic curves: a dozen RSA keys take seconds.
    output_of("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)


def _authority(path: Path) -> None:
    certificate = path.with_suffix(".crt")
    if certificate.exists():
        return
    _key(path.with_suffix(".key"))
    output_of(
        *("openssl", "req", "-x509", "-key", path.with_suffix(".key"), "-out", certificate, "-days", "3650"),
        *("-subj", f"/CN={path.name}", "-addext", "basicConstraints=critical,CA:TRUE"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"),
    )


def _certificate(path: Path, authority: Path, subject: str, extensions: str) -> None:
    certificate, key, request, wanted = (path.with_suffix(end) for end in (".crt", ".key", ".csr", ".ext"))
    if certificate.exists():
        return
    _key(key)
    output_of("openssl", "req", "-new", "-key", key, "-subj", subject, "-out", request)
    wanted.write_text(f"basicConstraints=CA:FALSE\nkeyUsage=digitalSignature,keyEncipherment\n{extensions}\n")
    output_of(
        *("openssl", "x509", "-req", "-in", request, "-out", certificate, "-days", "3650", "-extfile", wanted),
        *("-CA", authority.with_suffix(".crt"), "-CAkey", authority.with_suffix(".key"), "-CAcreateserial"),
    )
    request.unlink()
    wanted.unlink()
