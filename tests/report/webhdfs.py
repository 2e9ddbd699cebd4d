"""Serves a local directory through HDFS' REST interface, for Hadoop's client ``webhdfs://``.

Source: Hadoop documentation, "WebHDFS REST API". Reads and writes take two requests; the response to the first contains
the location of the data.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

_PREFIX = "/webhdfs/v1"
_CHUNK = 1 << 16


class WebHdfs:
    """The server. ``read_bytes`` counts the bytes read, by path; ``created`` lists the paths of created files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.read_bytes: Counter[str] = Counter()
        self.created: list[str] = []
        handler = type("Handler", (_Handler,), {"service": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"webhdfs://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise, each body waits 40 ms for the client's acknowledgement of the headers
    service: WebHdfs

    def log_message(self, *_: object) -> None:
        """Disable the log."""

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        self.query = {name.lower(): values[0] for name, values in parse_qs(parts.query).items()}
        self.place = unquote(parts.path.removeprefix(_PREFIX)) or "/"
        self.local = self.service.root / self.place.lstrip("/")
        operation = self.query["op"].lower()
        answer = getattr(self, f"op_{operation}", None)
        if answer is None:
            self._refuse(400, "UnsupportedOperationException", operation)
        else:
            answer()

    do_GET = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 -- names of the base class

    # -- responses -----------------------------------------------------------------------------------------------

    def _json(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        # No content type: the jars of pyspark lack the parser that Hadoop's client would use.
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, name: str, message: str) -> None:
        java = {
            "FileNotFoundException": "java.io.FileNotFoundException",
            "FileAlreadyExistsException": "org.apache.hadoop.fs.FileAlreadyExistsException",
        }.get(name, f"java.lang.{name}")
        self._json({"RemoteException": {"exception": name, "javaClassName": java, "message": message}}, status)

    def _redirect(self) -> bool:
        """Redirect the client to the data on this server; return whether the redirect was sent."""
        if "data" in self.query:
            return False
        self.send_response(307)
        self.send_header("Location", f"http://{self.headers['Host']}{self.path}&data=true")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True

    def _status(self, path: Path, suffix: str) -> dict[str, Any]:
        state = path.stat()
        folder = path.is_dir()
        return {
            "pathSuffix": suffix,
            "type": "DIRECTORY" if folder else "FILE",
            "length": 0 if folder else state.st_size,
            "modificationTime": state.st_mtime_ns // 1_000_000,
            "accessTime": 0,
            "blockSize": 128 << 20,
            "replication": 1,
            "owner": "spark",
            "group": "spark",
            "permission": "755" if folder else "644",
        }

    # -- operations ----------------------------------------------------------------------------------------------

    def op_getfilestatus(self) -> None:
        if self.local.exists():
            self._json({"FileStatus": self._status(self.local, "")})
        else:
            self._refuse(404, "FileNotFoundException", f"File does not exist: {self.place}")

    def op_liststatus(self) -> None:
        if not self.local.exists():
            self._refuse(404, "FileNotFoundException", f"File {self.place} does not exist.")
            return
        entries = sorted(self.local.iterdir()) if self.local.is_dir() else [self.local]
        rows = [self._status(entry, entry.name if self.local.is_dir() else "") for entry in entries]
        self._json({"FileStatuses": {"FileStatus": rows}})

    def op_getfileblocklocations(self) -> None:
        block = {"offset": 0, "length": self.local.stat().st_size, "hosts": ["localhost"], "names": ["localhost:9866"]}
        block |= {
            "cachedHosts": [],
            "corrupt": False,
            "topologyPaths": ["/rack/localhost:9866"],
            "storageTypes": ["DISK"],
        }
        self._json({"BlockLocations": {"BlockLocation": [block]}})

    def op_open(self) -> None:
        if not self.local.is_file():
            self._refuse(404, "FileNotFoundException", f"File does not exist: {self.place}")
            return
        if self._redirect():
            return
        offset = int(self.query.get("offset", 0))
        size = self.local.stat().st_size - offset
        size = min(size, int(self.query["length"])) if "length" in self.query else size
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(size))
        self.end_headers()
        with self.local.open("rb") as file:
            file.seek(offset)
            while size > 0 and (chunk := file.read(min(size, _CHUNK))):
                self.wfile.write(chunk)
                self.service.read_bytes[self.place] += len(chunk)
                size -= len(chunk)

    def op_create(self) -> None:
        if self.query.get("overwrite") == "false" and self.local.exists():
            self._refuse(403, "FileAlreadyExistsException", f"{self.place} exists")
            return
        if self._redirect():
            return
        self.local.parent.mkdir(parents=True, exist_ok=True)
        self.service.created.append(self.place)
        with self.local.open("wb") as file:
            for chunk in self._sent():
                file.write(chunk)
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _sent(self) -> Any:  # an iterator of bytes
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            yield self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def op_mkdirs(self) -> None:
        self.local.mkdir(parents=True, exist_ok=True)
        self._json({"boolean": True})

    def op_rename(self) -> None:
        target = self.service.root / self.query["destination"].lstrip("/")
        target = target / self.local.name if target.is_dir() else target
        possible = self.local.exists() and not target.exists() and target.parent.is_dir()
        if possible:
            self.local.rename(target)
        self._json({"boolean": possible})

    def op_delete(self) -> None:
        there = self.local.exists()
        if there and self.local.is_dir():
            shutil.rmtree(self.local)
        elif there:
            self.local.unlink()
        self._json({"boolean": there})

    def op_setpermission(self) -> None:
        self._json({})

    op_settimes = op_setreplication = op_setpermission
