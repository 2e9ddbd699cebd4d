"""Runs a private Prometheus with given targets, and queries it.

It loads the recording rules and alerts of the chart unchanged, scrapes every second, and keeps its data in a
temporary directory. Source: Prometheus' HTTP API.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import yaml

from tests.private_broker import free_port
from tests.sidecar import is_ready
from tests.watched import Watched

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "helm" / "oxproxy" / "files" / "prometheus"

#: Interval of scrapes and of rule evaluations in seconds.
INTERVAL_SECONDS = 1

#: Timeout of the start in seconds.
START_SECONDS = 30.0


def program(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``. If it is missing, fail the test in CI, otherwise skip it."""
    path = shutil.which(name)
    if path is None:
        message = f"{name} is not installed (run `make setup`)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


def rule_files() -> list[Path]:
    """Return the recording rules and the alerts."""
    return sorted([*FOLDER.glob("recording/*.yaml"), *FOLDER.glob("alerts/*.yaml")])


def rules() -> list[dict[str, Any]]:
    """Return all rules of all groups."""
    documents = [yaml.safe_load(path.read_text()) for path in rule_files()]
    return [rule for document in documents for group in document["groups"] for rule in group["rules"]]


class Prometheus:
    """A Prometheus that runs while this context is active.

    Args:
        jobs: ``host:port`` of the targets, by job.
    """

    def __init__(self, jobs: Mapping[str, list[str]]) -> None:
        self._jobs = jobs
        self._folder = Path(tempfile.mkdtemp(prefix="oxproxy-prometheus-"))
        self._address = f"127.0.0.1:{free_port()}"
        self._processes: Watched | None = None

    def __enter__(self) -> Self:
        interval = f"{INTERVAL_SECONDS}s"
        configuration = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(path) for path in rule_files()],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": targets}]} for name, targets in self._jobs.items()
            ],
        }
        (self._folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        command = [
            program("prometheus"),
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self._address}",
            "--log.level=warn",
        ]
        self._processes = Watched(self._folder, [command], os.environ, self._folder / "prometheus.log")
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(f"http://{self._address}/-/ready"):
            assert self._processes.running, (self._folder / "prometheus.log").read_text()
            assert time.monotonic() < deadline, "Prometheus did not respond"
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._processes is not None:
            self._processes.end()

    def query(self, expression: str, at: float | None = None) -> list[dict[str, Any]]:
        """Return the samples of an instant query, each with ``metric`` and ``value``.

        Raises:
            ValueError: the expression is invalid, with Prometheus' error message.
        """
        arguments = {"query": expression} | ({} if at is None else {"time": str(at)})
        result = self._get("query", arguments)["result"]
        # Prometheus returns a scalar as [time, value], not as a list of samples.
        return result if not result or isinstance(result[0], dict) else [{"metric": {}, "value": result}]

    def series(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Return the series of a range query, each with ``metric`` and ``values``."""
        arguments = {"query": expression, "start": str(start), "end": str(end), "step": str(step)}
        result: list[dict[str, Any]] = self._get("query_range", arguments)["result"]
        return result

    def alerts(self) -> list[dict[str, Any]]:
        """Return the pending and firing alerts."""
        alerts: list[dict[str, Any]] = self._get("alerts", {})["alerts"]
        return alerts

    def await_data(self, expression: str, seconds: float = 20.0) -> list[dict[str, Any]]:
        """Return the samples of an expression as soon as there are any; empty after the timeout."""
        deadline = time.monotonic() + seconds
        while True:
            samples = self.query(expression)
            if samples or time.monotonic() > deadline:
                return samples
            time.sleep(0.1)

    def _get(self, what: str, arguments: Mapping[str, str]) -> Any:  # JSON of any shape
        url = f"http://{self._address}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(error.read().decode()) from error
