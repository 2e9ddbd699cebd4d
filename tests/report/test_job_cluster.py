"""Tests reports and back-tests on a standalone cluster: a master and two workers on loopback, ``file://`` paths."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.spark import archive
from tests.private_broker import free_port
from tests.producer import until
from tests.report import lines
from tests.report.generator import Day
from tests.report.independent import Computed
from tests.sidecar import PROGRAM, oxproxy
from tests.watched import Watched

pytestmark = [pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(900)]

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
        self.home, self.folder, self.events = home, folder, folder / "events"
        # Executors cannot import this package: their Python has DuckDB, and PYTHONPATH is not set.
        self.environment = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "LANG") if name in os.environ}
        self.environment |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": LOOPBACK, "HOME": str(folder)}
        start = [str(home / "bin/spark-class")]
        master = [*start, "org.apache.spark.deploy.master.Master", "--host", LOOPBACK]
        worker = [*start, "org.apache.spark.deploy.worker.Worker", "--host", LOOPBACK, "--cores", "1", "--memory", "1g"]
        commands = [[*master, "--port", str(port), "--webui-port", str(web)]]
        for number in range(2):
            place = ["--work-dir", str(folder / f"worker-{number}"), "--webui-port", str(free_port())]
            commands.append([*worker, *place, self.url])
        (folder / "run").mkdir()
        self.processes = Watched(folder / "run", commands, self.environment, folder / "cluster.log")

    def workers(self) -> int:
        """Return the number of workers registered with the master."""
        try:
            with urllib.request.urlopen(self.state, timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError):  # a master that is starting answers with a page
            return 0

    def submit(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program for spark-submit with only the archive. The event log shows where its tasks run."""
        packed = self.folder / "report.zip"
        archive.write(packed)
        options = ["--master", self.url, "--py-files", str(packed), "--executor-memory", "700m"]
        events = {"enabled": "true", "dir": f"file://{self.events}", "compress": "false", "rolling.enabled": "false"}
        settings = {f"spark.eventLog.{name}": value for name, value in events.items()}
        settings |= {"spark.driver.host": LOOPBACK, "spark.ui.enabled": "false"}
        for name, value in settings.items():
            options += ["--conf", f"{name}={value}"]
        shutil.rmtree(self.events, ignore_errors=True)
        self.events.mkdir()
        return self.run(str(self.home / "bin/spark-submit"), *options, str(ROOT / "deploy/spark" / program), *arguments)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = self.environment | {"PYSPARK_PYTHON": sys.executable, "PYTHONNOUSERSITE": "1"}
        return subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=500
        )

    def merging(self) -> set[str]:
        """Return the executors whose tasks read shuffled data in the last run: they merged results of other tasks."""
        return {
            event["Task Info"]["Executor ID"]
            for path in self.events.iterdir()
            for event in map(json.loads, path.read_text().splitlines())
            if event["Event"] == "SparkListenerTaskEnd"
            and event["Task Metrics"]["Shuffle Read Metrics"]["Total Records Read"]
        }


@pytest.fixture(scope="module")
def cluster(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    import pyspark

    running = Cluster(tmp_path_factory.mktemp("cluster"), Path(pyspark.__file__).parent)
    try:
        until(lambda: running.workers() == 2, 100)
        yield running
    finally:
        running.processes.end()


def test_a_cluster_creates_the_report_with_only_duckdb_and_the_archive(cluster: Cluster, tmp_path: Path) -> None:
    log, output = tmp_path / "in", tmp_path / "out"
    Day(RECORDS).write(log)
    rules = ROOT / "config/rules/documents.yaml"
    common = ("report.py", "--input", f"file://{log}", "--output", f"file://{output}")
    done = cluster.submit(*common, "--rules", str(rules))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"{RECORDS:,} publishes in 72 segments" in done.stdout
    Computed(log, output).compare()
    assert "public documents" in (output / "report.html").read_text()
    # Both workers merged hours and created tables, and all output is complete.
    assert cluster.merging() == {"0", "1"}
    assert {path.name for path in output.iterdir()} >= {"report.html", "_rejected", "traffic"}

    streamed = cluster.submit(*common, "--stream", "--once")
    assert streamed.returncode == 0, streamed.stdout[-3000:] + streamed.stderr[-3000:]
    assert "read 0 new segments" in streamed.stdout


RULES = """
exchanges:
  - name: orders
    delivery: queue
    bindings:
      - {queue: eu, when: {region: eu}}
      - {queue: large, when: {"amount >=": LIMIT}}
"""


def write_facts(log: Path) -> None:
    """Write publishes in five hours, which the rules with the limit 1000 evaluated, and some without facts."""
    for hour in range(5):
        made = [lines.publish(exchange="orders", message_id=f"none-{hour}")]
        for number, (region, amount) in enumerate(itertools.product(("eu", "us"), (500, 1500, 2500 + hour))):
            headers = [["region", "S", region], ["amount", "I", amount]]
            facts = {"names": ["amount", "region"], "headers": headers, "property_names": [], "properties": {}}
            queues = ["eu"] * (region == "eu") + ["large"] * (amount >= 1000)
            outcome = {"queues": queues, "outcome": "routed" if queues else "unrouted"}
            made.append(lines.publish(kind="facts", facts=number, **facts))
            made.append(
                lines.publish(exchange="orders", facts=number, message_id=f"{hour}-{number}", bindings=[], **outcome)
            )
        lines.segment(log, made, hour=hour)


def test_a_cluster_judges_publishes_with_only_the_stated_packages_and_the_archive(
    cluster: Cluster, tmp_path: Path
) -> None:
    log, output, candidate = tmp_path / "in", tmp_path / "out", tmp_path / "next.yaml"
    write_facts(log)
    candidate.write_text(RULES.replace("LIMIT", "2000"))
    common = (str(candidate), "--input", f"file://{log}", "--json")
    local = json.loads(oxproxy("backtest", *common).stdout)
    assert (local["judged"], local["different"], local["unroutable"], local["not_judged"]) == (30, 10, 5, 5)

    done = cluster.submit("backtest.py", *common, "--output", f"file://{output}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout[done.stdout.index("{") :])  # spark-submit also writes the progress to it
    assert found.pop("page").endswith("/backtest.html")
    assert {**found, "evaluations": 0, "page": ""} == {**local, "evaluations": 0}
    assert cluster.merging() == {"0", "1"}

    # The command without spark-submit.
    more = ["--master", cluster.url, "--conf", f"spark.submit.pyFiles={cluster.folder / 'report.zip'}"]
    again = cluster.run(str(PROGRAM), "backtest", *common, "--output", f"file://{output}", *more)
    assert again.returncode == 0, again.stdout[-3000:] + again.stderr[-3000:]
    assert json.loads(again.stdout)["different"] == 10


def test_a_missing_package_of_the_executors_is_named(cluster: Cluster, tmp_path: Path) -> None:
    write_facts(tmp_path / "in")
    (tmp_path / "next.yaml").write_text(RULES.replace("LIMIT", "2000"))
    # Executors find this module instead of the package.
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow/pydantic.py").write_text("raise ModuleNotFoundError(\"No module named 'pydantic'\")\n")
    more = ["--master", cluster.url, "--conf", f"spark.submit.pyFiles={cluster.folder / 'report.zip'}"]
    more += ["--conf", f"spark.executorEnv.PYTHONPATH={tmp_path / 'shadow'}"]
    archive.write(cluster.folder / "report.zip")
    arguments = ["--input", f"file://{tmp_path / 'in'}", "--output", f"file://{tmp_path / 'out'}"]
    done = cluster.run(str(PROGRAM), "backtest", str(tmp_path / "next.yaml"), *arguments, *more)
    assert done.returncode == 2
    sentence = "Spark's executors have no Python module pydantic (docs/reference/audit.md, On a cluster)"
    assert done.stderr.splitlines()[-1] == f"oxproxy backtest: {sentence}"  # after Spark's log of the failed tasks
    assert not (tmp_path / "out/backtest.html").exists()
