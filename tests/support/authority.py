"""Certificates for 127.0.0.1 or for names, made by the openssl command."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from .waiting import HANG_SECONDS

OPENSSL = shutil.which("openssl")

needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command")


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.cert, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        extension = "keyUsage=critical,keyCertSign,cRLSign"
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", extension, "-keyout", self.key, "-out", self.cert),
        )

    def issue(self, name: str, subject: str = "IP:127.0.0.1") -> tuple[Path, Path]:
        """Files of a certificate for a subject, and of its key."""
        cert, key, request = (self.folder / f"{name}{end}" for end in (".pem", ".key", ".csr"))
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"),
            *("-addext", f"subjectAltName={subject}", "-keyout", key, "-out", request),
        )
        openssl(
            *("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self.key, "-CAcreateserial", "-days", "2"),
            *("-copy_extensions", "copy", "-out", cert),
        )
        return cert, key


def openssl(*arguments: object) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *map(str, arguments)], check=True, capture_output=True, timeout=HANG_SECONDS)


def trusting(authority: Authority, client: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.cert))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if client is not None:
        context.load_cert_chain(*client)
    return context
