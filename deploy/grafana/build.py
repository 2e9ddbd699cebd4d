"""Writes the dashboards to the chart, from which Compose takes them too: ``python -m deploy.grafana.build``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from deploy.grafana.broker import BROKER
from deploy.grafana.dashboard import Dashboard
from deploy.grafana.overview import OVERVIEW
from deploy.grafana.rules import RULES

DIRECTORY = Path(__file__).resolve().parents[2] / "helm" / "oxproxy" / "files" / "dashboards"

DASHBOARDS = (OVERVIEW, RULES, BROKER)


def text(dashboard: Dashboard) -> str:
    return json.dumps(dashboard.json(), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    for dashboard in DASHBOARDS:
        (DIRECTORY / f"{dashboard.uid}.json").write_text(text(dashboard))
    return 0


if __name__ == "__main__":
    sys.exit(main())
