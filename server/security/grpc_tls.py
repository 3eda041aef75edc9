"""TLS of the gRPC port, from the same files as the HTTP port's, which may be replaced while the server runs."""

import logging
from pathlib import Path
from typing import Any

from ..config.settings import OFF, Settings

logger = logging.getLogger("milkweed.grpc")


def server_credentials(grpc: Any, settings: Settings) -> Any:
    """What a secure port is opened with; None where the settings name no certificate.

    The files are read again for each handshake; where they cannot be, those before them stay in force.

    Args:
        grpc: the package.

    Raises:
        OSError: a file cannot be read.
        ValueError: the settings ask for what gRPC cannot do.
    """
    if settings.tls_cert == OFF:
        return None
    if settings.tls_min_version != "1.2":
        raise ValueError(f"tls_min_version = {settings.tls_min_version}: gRPC also speaks TLS 1.2; set grpc_port to 0")
    last = _read(settings)

    def changed() -> Any:
        nonlocal last
        try:
            now = _read(settings)
        except OSError as error:
            logger.warning("TLS files cannot be read, the ones before stay: %s", error)
            return None
        if now == last:
            return None
        last = now
        return _configuration(grpc, now)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(grpc, last), changed, require_client_authentication=last[2] is not None
    )


Files = tuple[bytes, bytes, bytes | None]


def _read(settings: Settings) -> Files:
    """Key, chain, and who signs clients' certificates."""
    chain = Path(settings.tls_cert).read_bytes()
    key = chain if settings.tls_key == OFF else Path(settings.tls_key).read_bytes()
    return key, chain, None if settings.tls_client_ca == OFF else Path(settings.tls_client_ca).read_bytes()


def _configuration(grpc: Any, files: Files) -> Any:
    key, chain, authorities = files
    return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=authorities)
