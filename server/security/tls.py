"""Makes TLS of the HTTP and gRPC ports from PEM files, which may be replaced while the server runs."""

import logging
import ssl
from pathlib import Path
from typing import Any

from ..config.settings import OFF, Settings
from .file_watcher import FileWatcher

logger = logging.getLogger("milkweed.grpc")

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

_GrpcFiles = tuple[bytes, bytes, bytes | None]
"""The key, the chain, and the authorities of client certificates."""


class TlsError(ValueError):
    """The PEM files cannot be used; the message is one line."""


class Tls(ssl.SSLContext):
    """The TLS context of a listener. New connections use the newest files, of which chain, key and client authorities
    change together or not at all; open connections keep what they have.
    """

    _settings: Settings
    _current: ssl.SSLContext

    @classmethod
    def of(cls, settings: Settings, watcher: FileWatcher) -> "Tls | None":
        """The context for the settings; None without a certificate. Raises TlsError where the files cannot be used."""
        if settings.tls_cert == OFF:
            return None
        tls = cls(ssl.PROTOCOL_TLS_SERVER)
        tls._settings = settings
        files = [Path(file) for file in (settings.tls_cert, settings.tls_key, settings.tls_client_ca) if file != OFF]
        watcher.add("tls", files, tls.reload)
        return tls

    def reload(self) -> None:
        """Read the files. Raises TlsError where they cannot be used; those before stay in force."""
        self._current = make_context(self._settings)

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Called by the event loop for each connection."""
        return self._current.wrap_bio(*args, **kwargs)


def make_context(settings: Settings) -> ssl.SSLContext:
    """A server's context from the files in the settings. Raises TlsError, which names the file and what is wrong with
    it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.tls_min_version]
    context.set_alpn_protocols(["http/1.1"])
    cert, key = settings.tls_cert, None if settings.tls_key == OFF else settings.tls_key
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        file = getattr(settings, name)
        if file != OFF:
            _check_readable(name, file)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"tls_cert {cert}, tls_key {key or cert}: {_reason(error)}") from None
    if settings.tls_client_ca != OFF:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except ssl.SSLError as error:
            raise TlsError(f"tls_client_ca {settings.tls_client_ca}: {_reason(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def grpc_credentials(grpc: Any, settings: Settings) -> Any:
    """The credentials of the gRPC port; None where the settings name no certificate.

    The files are read again for each handshake; where they cannot be read, those before stay in force.

    Args:
        grpc: the package, which is optional.

    Raises:
        OSError: a file cannot be read.
        ValueError: the settings ask for what gRPC cannot do.
    """
    if settings.tls_cert == OFF:
        return None
    if settings.tls_min_version != "1.2":
        raise ValueError(f"tls_min_version = {settings.tls_min_version}: gRPC also speaks TLS 1.2; set grpc_port to 0")
    last = _read_files(settings)

    def changed() -> Any:
        nonlocal last
        try:
            now = _read_files(settings)
        except OSError as error:
            logger.warning("TLS files cannot be read, the ones before stay: %s", error)
            return None
        if now == last:
            return None
        last = now
        return _grpc_configuration(grpc, now)

    return grpc.dynamic_ssl_server_credentials(
        _grpc_configuration(grpc, last), changed, require_client_authentication=last[2] is not None
    )


def _check_readable(name: str, file: str) -> None:
    """Raise an error that names a missing file, which OpenSSL's does not."""
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise TlsError(f"{name} {file}: {error.strerror}") from None


def _no_password() -> str:
    """Keep OpenSSL from asking at the terminal for the password of an encrypted key."""
    return ""


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    words = {
        "KEY_VALUES_MISMATCH": "the key is not the certificate's",
        "NO_START_LINE": "no PEM certificate or key in it",
        "NO_CERTIFICATE_OR_CRL_FOUND": "no PEM certificate in it",
        "BAD_DECRYPT": "the key is encrypted: a key without a password is needed",
        "EE_KEY_TOO_SMALL": "the key is too small",
    }
    if reason is None:
        return "no certificate and key in PEM, or an encrypted key"
    return words.get(reason, reason.lower().replace("_", " "))


def _read_files(settings: Settings) -> _GrpcFiles:
    chain = Path(settings.tls_cert).read_bytes()
    key = chain if settings.tls_key == OFF else Path(settings.tls_key).read_bytes()
    return key, chain, None if settings.tls_client_ca == OFF else Path(settings.tls_client_ca).read_bytes()


def _grpc_configuration(grpc: Any, files: _GrpcFiles) -> Any:
    key, chain, authorities = files
    return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=authorities)
