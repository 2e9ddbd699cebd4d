"""Runs the sidecar in the file system of an image, in a chroot with a read-only root, as the image's user."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pika
import yaml

from deploy.release.source import ROOT
from tests.private_broker import PrivateBroker, free_port
from tests.sidecar import is_ready, pika_channel
from tests.watched import Watched

START_SECONDS = 30.0


def inside(root: Path, *command: str) -> list[str]:
    """Return the command that runs ``command`` in the container, as the image's user on a read-only root."""
    user = "--userspec=10001:10001"
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec chroot ' + user + ' "$0" "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(root), *command]


def serve_and_route(root: Path, folder: Path) -> None:
    """Start the sidecar of the image in front of a private broker, route a message, check the health and drain."""
    (root / "etc/oxproxy/rules").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "config" / "rules" / "documents.yaml", root / "etc/oxproxy/rules")
    port, admin = free_port(), free_port()
    with PrivateBroker() as broker:
        settings = {
            "listen": [{"address": f"127.0.0.1:{port}"}],
            "upstream": {"address": broker.address, "management": broker.management},
            "rules": ["rules/*.yaml"],
            "admin": {"address": f"0.0.0.0:{admin}"},
        }
        (root / "etc/oxproxy/oxproxy.yaml").write_text(yaml.safe_dump(settings))
        serve = inside(root, "/opt/oxproxy/bin/oxproxy", "serve", "--config", "/etc/oxproxy/oxproxy.yaml")
        container = Watched(folder, [serve], {"PATH": os.environ["PATH"]}, folder / "log", 15.0)
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(f"http://127.0.0.1:{admin}/readyz"):
            assert container.running, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.1)
        check = inside(root, "/opt/oxproxy/bin/python", "/opt/oxproxy/healthcheck.py")
        assert subprocess.run(check, check=False).returncode == 0
        with pika_channel(port) as channel:
            properties = pika.BasicProperties(headers={"document.type": "public"})
            channel.basic_publish("documents", "a.b", b"body", properties, mandatory=True)
            assert channel.basic_get("documents.public", auto_ack=True)[2] == b"body"
        assert container.end(), "it did not end with 0 after SIGTERM"
