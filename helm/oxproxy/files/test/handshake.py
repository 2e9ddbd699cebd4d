"""The program of ``helm test``: performs an AMQP handshake up to Connection.Start, and requests ``/readyz``.

Arguments: host and port of the Service; ``plain``, ``tls``, or ``mutual`` if producers need a certificate (the test has
no certificate, so it ends with the TLS handshake); URL of ``/readyz``. Exit status: 0 if both succeed, otherwise 1. The
program uses only the standard library, because the chart passes this text to the image's Python.
"""

import socket
import ssl
import sys
import urllib.error
import urllib.request

SECONDS = 10.0
#: Frame type, channel, class 10 and method 10. The frame size is not checked.
START = (1, 0, 10, 10)


def unverified() -> ssl.SSLContext:
    """Return a context for a server whose existence is checked, but not its name, which is intended for its clients."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def handshake(host: str, port: int, security: str) -> str:
    """Return the error; "" if the sidecar replies as AMQP 0-9-1 requires."""
    with socket.create_connection((host, port), timeout=SECONDS) as plain:
        connection = plain
        if security != "plain":
            connection = unverified().wrap_socket(plain, server_hostname=host)
            if security == "mutual":
                return ""
        connection.sendall(b"AMQP\x00\x00\x09\x01")
        answer = b""
        while len(answer) < 11:
            part = connection.recv(11 - len(answer))
            if not part:
                return "closed without a reply to the protocol header"
            answer += part
    seen = (answer[0], int.from_bytes(answer[1:3], "big"), *(int.from_bytes(answer[i : i + 2], "big") for i in (7, 9)))
    return "" if seen == START else f"got {answer!r}, expected Connection.Start"


def main(arguments: list[str]) -> int:
    """Check both and print the results."""
    host, port, security, readiness = arguments
    try:
        fault = handshake(host, int(port), security)
    except OSError as error:
        fault = str(error)
    print(f"{host}:{port} ({security}): {fault or 'answers'}")
    try:
        with urllib.request.urlopen(readiness, timeout=SECONDS, context=unverified()) as answer:
            ready, text = answer.status == 200, "ready"
    except urllib.error.HTTPError as error:
        ready, text = False, f"{error.code} {error.read(2000).decode(errors='replace').strip()}"
    except OSError as error:
        ready, text = False, str(error)
    print(f"{readiness}: {text}")
    return 0 if ready and not fault else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
