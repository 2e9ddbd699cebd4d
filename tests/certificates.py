"""A private certificate authority whose certificates are created with the openssl command."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

#: Creating an RSA key takes a hundred times longer.
KEY = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")

#: Only ``openssl ca`` supports arbitrary validity periods.
_CA = """
[ca]
default_ca = here
[here]
database = {folder}/index.txt
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
"""


class Authority:
    """An authority with its files in a directory.

    Args:
        folder: an empty directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.ca = folder / "ca.pem"
        self._key = folder / "ca.key"
        (folder / "index.txt").touch()
        (folder / "ca.conf").write_text(_CA.format(folder=folder))
        subject = ["-subj", "/CN=private authority", "-addext", "basicConstraints=critical,CA:TRUE"]
        self._openssl("req", "-x509", "-newkey", *KEY, "-nodes", "-days", "2", "-keyout", str(self._key), *subject)

    def _openssl(self, *arguments: str, out: Path | None = None) -> None:
        target = str(out or self.ca)
        subprocess.run(["openssl", *arguments, "-out", target], check=True, capture_output=True)

    def certificate(self, name: str, *, expired: bool = False, days: int = 2) -> tuple[Path, Path]:
        """Create a certificate for a host, and return the certificate and its key."""
        stem = f"{name}-expired" if expired else name
        key, request, made = (self.folder / f"{stem}.{end}" for end in ("key", "csr", "pem"))
        more = ["-newkey", *KEY, "-nodes", "-keyout", str(key), "-subj", f"/CN={name}"]
        self._openssl("req", *more, out=request)
        names = self.folder / f"{stem}.ext"
        names.write_text(f"subjectAltName=DNS:{name}\n")
        time = ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"] if expired else ["-days", str(days)]
        signed = ["-config", str(self.folder / "ca.conf"), "-cert", str(self.ca), "-keyfile", str(self._key), *time]
        self._openssl("ca", "-batch", "-notext", "-in", str(request), *signed, "-extfile", str(names), out=made)
        key.chmod(0o644)
        return made, key

    def client(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return a context for clients that trusts this authority and has the given certificate, if any."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context
