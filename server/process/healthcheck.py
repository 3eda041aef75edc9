"""Asks the server in the same container whether it is ready, for HEALTHCHECK: the exit code is 0 or 1.

It reads the environment alone, not options, nor a file of settings. It imports nothing of the server, because it starts
every few seconds.
"""

import os
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

TIMEOUT_SECONDS = 4.0
DEFAULTS = {"PORT": "8000", "METRICS_PORT": "8001", "TLS_CERT": "off", "TLS_CLIENT_CA": "off"}


def connect() -> HTTPConnection:
    """A connection to the service's port, or to the metrics port where the service asks for a client certificate."""
    settings = {name: os.environ.get(f"MILKWEED_{name}", default) for name, default in DEFAULTS.items()}
    if settings["TLS_CLIENT_CA"] != "off":
        return HTTPConnection("127.0.0.1", int(settings["METRICS_PORT"]), timeout=TIMEOUT_SECONDS)
    if settings["TLS_CERT"] == "off":
        return HTTPConnection("127.0.0.1", int(settings["PORT"]), timeout=TIMEOUT_SECONDS)
    # The certificate names the service, not this address.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return HTTPSConnection("127.0.0.1", int(settings["PORT"]), timeout=TIMEOUT_SECONDS, context=context)


if __name__ == "__main__":
    connection = connect()
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
    except (OSError, HTTPException) as error:
        sys.exit(repr(error))
    print(response.status, response.read(400).decode(errors="replace").strip())
    sys.exit(response.status != 200)
