"""Draws each dashboard with data of a real run: ``python -m tests.deploy.preview``, about two minutes.

Runs a broker, a sidecar under load and a Prometheus. During the run, unroutable messages are published, the rules
change and the broker raises a memory alarm. The pictures are written to docs/dashboards.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from deploy.grafana.build import DASHBOARDS
from tests.deploy.drawing import draw
from tests.deploy.expressions import CHOICES, with_choices
from tests.deploy.load import scraped, traffic
from tests.deploy.prometheus import ROOT, Prometheus

PICTURES = ROOT / "docs" / "dashboards"
RULES = ROOT / "config" / "rules" / "documents.yaml"

#: Seconds of each phase of the run.
PHASE_SECONDS = 20


def run(folder: Path) -> None:
    """Run all phases, then draw the dashboards."""
    rules = folder / "documents.yaml"
    rules.write_text(RULES.read_text())
    with scraped(rules, folder) as (broker, sidecar, prometheus):
        start = time.time()
        with sidecar, traffic(sidecar.address):
            time.sleep(PHASE_SECONDS)
            with traffic(sidecar.address, unwanted=True):
                time.sleep(PHASE_SECONDS)
            rules.write_text(RULES.read_text().replace("document.public.#", "document.#"))
            time.sleep(PHASE_SECONDS)
            broker.rabbitmqctl("set_vm_memory_high_watermark", "absolute", "1MB")
            time.sleep(PHASE_SECONDS / 4)
            broker.rabbitmqctl("set_vm_memory_high_watermark", "0.4")
            time.sleep(PHASE_SECONDS)
            draw_all(prometheus, start, time.time())


def draw_all(prometheus: Prometheus, start: float, end: float) -> None:
    def ask(target: dict[str, Any]) -> list[dict[str, Any]]:
        # The sidecar of this run has no other brokers, so their metrics come from a generated page.
        for job in ("oxproxy", "oxproxy-more"):
            text = with_choices(target["expr"], CHOICES | {"job": job})
            samples = prometheus.query(text) if target["instant"] else prometheus.series(text, start, end, 1.0)
            if samples:
                break
        for labels in (sample["metric"] for sample in samples):
            if "file" in labels:
                labels["file"] = Path(labels["file"]).name
        return samples

    for dashboard in DASHBOARDS:
        draw(dashboard.json(), ask, (start, end), PICTURES / f"{dashboard.uid}.png")


def main() -> int:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="oxproxy-preview-") as folder:
        run(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
