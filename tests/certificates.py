"""A private certificate authority, and certificates of it, made by the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """An authority whose files lie in a folder.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._key = folder / "ca.key"
        subject = ["-subj", "/CN=private authority", "-addext", "basicConstraints=critical,CA:TRUE"]
        self._openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(self._key), *subject
        )

    def _openssl(self, *arguments: str, out: Path | None = None) -> None:
        target = str(out or self.ca)
        subprocess.run(["openssl", *arguments, "-out", target], check=True, capture_output=True)

    def certificate(self, name: str) -> tuple[Path, Path]:
        """Make a certificate for a host; give it and its key."""
        key, request, made = (self.folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
        more = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-subj", f"/CN={name}"]
        self._openssl("req", *more, out=request)
        names = self.folder / f"{name}.ext"
        names.write_text(f"subjectAltName=DNS:{name}\n")
        signed = ["-CA", str(self.ca), "-CAkey", str(self._key), "-CAcreateserial", "-days", "2"]
        self._openssl("x509", "-req", "-in", str(request), *signed, "-extfile", str(names), out=made)
        key.chmod(0o644)
        return made, key
