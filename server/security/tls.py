"""TLS from PEM files, which may be replaced while the server runs."""

import ssl
from pathlib import Path
from typing import Any

from ..config.settings import OFF, Settings
from .file_watcher import FileWatch

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsError(ValueError):
    """Files that TLS cannot be made of; the message is one line."""


class Tls(ssl.SSLContext):
    """The context of a listener. It hands each new connection to the one made of the newest files, so that chain,
    key and client authorities change together or not at all; open connections keep what they have.
    """

    _settings: Settings
    _current: ssl.SSLContext

    @classmethod
    def of(cls, settings: Settings, watch: FileWatch) -> "Tls | None":
        """The context that the settings ask for; None without a certificate.

        Raises:
            TlsError: the files cannot be used.
        """
        if settings.tls_cert == OFF:
            return None
        tls = cls(ssl.PROTOCOL_TLS_SERVER)
        tls._settings = settings
        files = [Path(file) for file in (settings.tls_cert, settings.tls_key, settings.tls_client_ca) if file != OFF]
        watch.add("tls", files, tls.reload)
        return tls

    def reload(self) -> None:
        """Read the files.

        Raises:
            TlsError: they cannot be used; what was there stays.
        """
        self._current = make_context(self._settings)

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """One connection's TLS; called by the event loop."""
        return self._current.wrap_bio(*args, **kwargs)


def make_context(settings: Settings) -> ssl.SSLContext:
    """A server's context from the files in the settings.

    Raises:
        TlsError: names the file and what is wrong with it.
    """
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


def _check_readable(name: str, file: str) -> None:
    """OpenSSL's own words for a file that is not there name no file."""
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise TlsError(f"{name} {file}: {error.strerror}") from None


def _no_password() -> str:
    """Without this OpenSSL would ask at the terminal for the password of an encrypted key."""
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
