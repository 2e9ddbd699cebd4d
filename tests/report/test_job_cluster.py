"""Tests spark-submit on a standalone cluster: a master and two workers on loopback, ``file://`` paths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.spark import archive
from tests.private_broker import free_port
from tests.producer import until
from tests.report.generator import Day
from tests.report.independent import Computed
from tests.watched import Watched

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 20_000
LOOPBACK = "127.0.0.1"


class Cluster:
    """A running cluster.

    Args:
        folder: directory for its log and the workers' files.
        home: Spark's home directory.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        port, web = free_port(), free_port()
        self.url, self.state = f"spark://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{web}/json/"
        self.home, self.folder = home, folder
        # Executors cannot import this package: their Python has DuckDB, and PYTHONPATH is not set.
        self.environment = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "LANG") if name in os.environ}
        self.environment |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": LOOPBACK, "HOME": str(folder)}
        start = [str(home / "bin/spark-class")]
        master = [*start, "org.apache.spark.deploy.master.Master", "--host", LOOPBACK]
        worker = [*start, "org.apache.spark.deploy.worker.Worker", "--host", LOOPBACK, "--cores", "1", "--memory", "1g"]
        commands = [[*master, "--port", str(port), "--webui-port", str(web)]]
        for number in range(2):
            place = ["--work-dir", str(folder / f"worker-{number}"), "--webui-port", str(free_port(port, web))]
            commands.append([*worker, *place, self.url])
        (folder / "run").mkdir()
        self.processes = Watched(folder / "run", commands, self.environment, folder / "cluster.log")

    def workers(self) -> int:
        """Return the number of workers registered with the master."""
        try:
            with urllib.request.urlopen(self.state, timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:
            return 0

    def submit(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the report with only the archive."""
        packed = self.folder / "report.zip"
        archive.write(packed)
        options = ["--master", self.url, "--py-files", str(packed), "--executor-memory", "700m"]
        options += ["--conf", f"spark.driver.host={LOOPBACK}", "--conf", "spark.ui.enabled=false"]
        command = [str(self.home / "bin/spark-submit"), *options, str(ROOT / "deploy/spark/report.py"), *arguments]
        environment = self.environment | {"PYSPARK_PYTHON": sys.executable, "PYTHONNOUSERSITE": "1"}
        return subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=500
        )


@pytest.fixture
def cluster(java: None, tmp_path: Path) -> Iterator[Cluster]:
    import pyspark

    running = Cluster(tmp_path, Path(pyspark.__file__).parent)
    try:
        until(lambda: running.workers() == 2, 100)
        yield running
    finally:
        running.processes.end()


@pytest.mark.spark
@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_a_cluster_creates_the_report_with_only_duckdb_and_the_archive(cluster: Cluster, tmp_path: Path) -> None:
    log, output = tmp_path / "in", tmp_path / "out"
    Day(RECORDS).write(log)
    rules = ROOT / "config/rules/documents.yaml"
    done = cluster.submit("--input", f"file://{log}", "--output", f"file://{output}", "--rules", str(rules))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"{RECORDS:,} publishes in 72 segments" in done.stdout
    Computed(log, output).compare()
    assert "public documents" in (output / "report.html").read_text()
    # Both workers ran an executor, and all output is complete.
    assert [len(list((tmp_path / f"worker-{number}").glob("app-*/*/stderr"))) for number in range(2)] == [1, 1]
    assert {path.name for path in output.iterdir()} >= {"report.html", "_rejected", "traffic"}

    streamed = cluster.submit("--input", f"file://{log}", "--output", f"file://{output}", "--stream", "--once")
    assert streamed.returncode == 0, streamed.stdout[-3000:] + streamed.stderr[-3000:]
    assert "read 0 new segments" in streamed.stdout
