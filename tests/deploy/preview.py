"""Draws each dashboard with the data of a real run: ``python -m tests.deploy.preview [FOLDER]``, about two minutes.

A broker, a sidecar under load and a Prometheus; on the way messages that nobody wants, a change of rules and a memory
alarm of the broker, so that there is something to see. The pictures lie in docs/dashboards.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from deploy.grafana.build import DASHBOARDS
from tests.deploy.drawing import draw
from tests.deploy.expressions import CHOICES, with_choices
from tests.deploy.load import traffic
from tests.deploy.prometheus import ROOT, Prometheus
from tests.deploy.remotes import page_with_other_brokers
from tests.deploy.whole import whole_sidecar
from tests.private_broker import PrivateBroker, free_port

PICTURES = ROOT / "docs" / "dashboards"
RULES = ROOT / "config" / "rules" / "documents.yaml"

#: Seconds of each stretch of the run.
STRETCH_SECONDS = 20


class Story:
    """One run, and what Prometheus saw of it."""

    def __init__(self) -> None:
        self._ports = free_port()
        lines = (f"prometheus.tcp.port = {self._ports}", "prometheus.tcp.ip = 127.0.0.1")
        self._broker = PrivateBroker(lines, ("rabbitmq_prometheus",))
        self.start = time.time()
        self.end = self.start

    def run(self, folder: Path) -> None:
        """Run it all, and draw at the end."""
        rules = folder / "documents.yaml"
        rules.write_text(RULES.read_text())
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._broker)
            sidecar = whole_sidecar(self._broker, rules, folder)
            targets = {
                "oxproxy": sidecar.admin.removeprefix("http://"),
                "oxproxy-more": stack.enter_context(page_with_other_brokers()),
                "rabbitmq": f"127.0.0.1:{self._ports}",
            }
            prometheus = stack.enter_context(Prometheus({name: [target] for name, target in targets.items()}))
            self.start = time.time()
            with sidecar, traffic(sidecar.address):
                time.sleep(STRETCH_SECONDS)
                with traffic(sidecar.address, unwanted=True):
                    time.sleep(STRETCH_SECONDS)
                rules.write_text(RULES.read_text().replace("document.public.#", "document.#"))
                time.sleep(STRETCH_SECONDS)
                self._broker.rabbitmqctl("set_vm_memory_high_watermark", "absolute", "1MB")
                time.sleep(STRETCH_SECONDS / 4)
                self._broker.rabbitmqctl("set_vm_memory_high_watermark", "0.4")
                time.sleep(STRETCH_SECONDS)
                self.end = time.time()
                self._draw(prometheus)

    def _draw(self, prometheus: Prometheus) -> None:
        def ask(target: dict[str, Any]) -> list[dict[str, Any]]:
            # The sidecar of this run has no other brokers; a page that has them answers for it.
            for job in ("oxproxy", "oxproxy-more"):
                text = with_choices(target["expr"], CHOICES | {"job": job})
                found = (
                    prometheus.query(text) if target["instant"] else prometheus.series(text, self.start, self.end, 1.0)
                )
                if found:
                    break
            for labels in (each["metric"] for each in found):
                if "file" in labels:
                    labels["file"] = Path(labels["file"]).name
            return found

        for dashboard in DASHBOARDS:
            draw(dashboard.json(), ask, (self.start, self.end), PICTURES / f"{dashboard.uid}.png")


def main() -> int:
    """Draw the pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="oxproxy-preview-") as folder:
        Story().run(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
