"""When does a certificate end? Read from its PEM text, since Python's `ssl` tells that of peers only.

Knows neither files nor TLS. It looks at certificates that OpenSSL has taken, so it checks nothing but what it reads.

Source: RFC 5280, 4.1 (certificate) and 4.1.2.5 (validity); X.690, 8.1 (DER).
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime

_PEM = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.*?)-----END ", re.DOTALL)
#: Tags of what may stand in front of the serial number, and of a time whose year has two digits.
_VERSION, _UTC_TIME = 0xA0, 0x17


def certificate_end(pem: bytes) -> float:
    """Return when the first certificate of a file ends, which is the one that is shown to others.

    Args:
        pem: content of the file.

    Returns:
        Seconds since 1970.

    Raises:
        ValueError: there is no certificate in it, or none that can be read.
    """
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("no certificate in PEM")
    try:
        return _end(base64.b64decode(found[1]))
    except (IndexError, ValueError) as error:
        raise ValueError("the certificate can't be read") from error


def _end(der: bytes) -> float:
    at, _ = _der_content(der, 0)  # Certificate
    at, _ = _der_content(der, at)  # tbsCertificate
    if der[at] == _VERSION:
        _, at = _der_content(der, at)
    for _ in ("serialNumber", "signature", "issuer"):
        _, at = _der_content(der, at)
    at, _ = _der_content(der, at)  # validity
    _, at = _der_content(der, at)  # notBefore
    begin, end = _der_content(der, at)
    text = der[begin:end].decode("ascii")
    if der[at] == _UTC_TIME:
        text = ("20" if text < "50" else "19") + text  # RFC 5280, 4.1.2.5.1
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _der_content(der: bytes, at: int) -> tuple[int, int]:
    """Return where the content of the element at a place begins and ends."""
    begin, length = at + 2, der[at + 1]
    if length & 0x80:  # so many bytes hold the length
        width = length & 0x7F
        length = int.from_bytes(der[begin : begin + width])
        begin += width
    return begin, begin + length
