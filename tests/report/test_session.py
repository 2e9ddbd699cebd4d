from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oxproxy.cli.main import main
from oxproxy.errors import ConfigError
from oxproxy.report.files.storage import LocalFiles
from oxproxy.report.job import run
from oxproxy.report.progress import Progress
from oxproxy.report.request import Request
from oxproxy.report.session import CONFIGURATION, LOCAL, LazySession, chosen, explained
from tests.private_broker import free_port
from tests.report.lines import publish, segment

#: Runs a command in Spark, even for small segments.
IN_SPARK = """
import sys
from oxproxy.cli.main import main
from oxproxy.report import session
session._SMALL_BYTES = 1
sys.exit(main(sys.argv[1:]))
"""


def request(master: str | None = None, *settings: tuple[str, str]) -> Request:
    return Request("in", "out", master=master, settings=settings)


@pytest.mark.parametrize("master", [None, "local[2]"])
def test_local_spark_listens_on_loopback_only(master: str | None) -> None:
    settings = chosen(request(master))
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.master"] == (master or "local[*]")


@pytest.mark.parametrize(("master", "is_submitted"), [("spark://host:7077", False), (None, True)])
def test_settings_of_a_cluster_are_not_overridden(
    monkeypatch: pytest.MonkeyPatch, master: str | None, is_submitted: bool
) -> None:
    if is_submitted:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    settings = chosen(request(master))
    assert not settings.keys() & (LOCAL.keys() - {"spark.master"})
    assert settings.get("spark.master") == master


def test_given_settings_override_the_defaults() -> None:
    assert chosen(request(None, ("spark.ui.enabled", "true")))["spark.ui.enabled"] == "true"


def test_missing_java_is_an_error_that_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="default-jre-headless"), LazySession(request()) as session:
        _ = session.spark


@pytest.mark.parametrize(
    ("master", "setting", "variable", "path"),
    [
        ("spark://host:7077", None, None, "/log"),
        (None, ("spark.hadoop.fs.defaultFS", "hdfs://host"), None, "/log"),
        (None, None, "HADOOP_CONF_DIR", "/log"),
        (None, None, None, "hdfs://host/log"),
    ],
)
def test_files_are_accessed_without_spark_only_if_they_are_surely_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
    master: str | None,
    setting: tuple[str, str] | None,
    variable: str | None,
    path: str,
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # the start of Spark fails
    for name in CONFIGURATION:
        monkeypatch.delenv(name, raising=False)
    assert isinstance(LazySession(request()).storage("/log", "file:/out", "file:///out"), LocalFiles)
    if variable:
        monkeypatch.setenv(variable, "/etc")
    with pytest.raises(ConfigError, match="default-jre-headless"):
        LazySession(request(master, *[setting] if setting else [])).storage(path, "/out")


def test_without_new_segments_spark_is_not_started(session: LazySession, tmp_path: Path) -> None:
    segment(tmp_path / "in", [publish()])
    assert run(session, Request(str(tmp_path / "in"), str(tmp_path / "out"))).read == 1
    program = str(Path(sys.executable).with_name("oxproxy"))
    command = [program, "report", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    without_java = {**os.environ, "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=without_java)
    assert done.stdout.startswith("1 publish in 1 segment")
    assert "read 0 new segments" in done.stdout


def test_an_unreachable_master_is_an_error_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for master in (f"spark://127.0.0.1:{free_port()}", "spark://nonsense"):
        command = ["report", "--input", str(tmp_path), "--output", str(tmp_path / "out"), "--master", master]
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"oxproxy: --master: can't connect to {master}: ")
        assert error.count("\n") == 1


def test_an_error_of_a_task_that_needs_more_memory_names_the_memory(session: LazySession) -> None:
    def exhaust(statement: str) -> None:
        import duckdb

        with duckdb.connect(config={"memory_limit": "10MB", "temp_directory": ""}) as duck:
            duck.execute(statement)

    command = "SELECT list(x ORDER BY x DESC) FROM range(10_000_000) numbers(x)"
    with pytest.raises(ConfigError) as raised, explained("reading the log"):
        session.mapped(exhaust, [command], 1 << 30, Progress("oxproxy report"))
    assert "reading the log failed: " in str(raised.value)
    assert "Out of Memory" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_invalid_setting_is_an_error_without_traceback(java: None, tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("oxproxy"))
    command = [program, "report", "--input", str(tmp_path), "--output", str(tmp_path / "out")]
    command += ["--conf", "spark.hadoop.x=y", "--conf", "spark.driver.memory=nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 2
    assert "Spark does not start" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_jar_of_a_file_system_is_an_error_with_advice(java: None, tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("oxproxy"))
    command = [program, "report", "--input", "s3a://logs/audit", "--output", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 2
    assert "Spark has no file system for s3a://; add the jar" in done.stderr
    assert "hadoop-aws:VERSION" in done.stderr
    assert "\tat " not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.matrix
def test_an_archive_of_classes_can_be_written_and_used(java: None, tmp_path: Path) -> None:
    segment(tmp_path / "in", [publish()])
    archive, log = tmp_path / "spark.jsa", tmp_path / "classes"

    def reported(options: str) -> subprocess.CompletedProcess[str]:
        arguments = ["report", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
        command = [sys.executable, "-c", IN_SPARK, *arguments]
        # Java writes the archive after the command has ended, and closes its output only when it exits.
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": f"-Xlog:disable {options}"}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)

    done = reported(f"-XX:ArchiveClassesAtExit={archive}")
    assert done.stdout.startswith("1 publish in 1 segment")
    assert "[cds]" not in done.stdout
    assert archive.stat().st_size > 50 << 20
    segment(tmp_path / "in", [publish(seq=2)], name="p-1-2")
    reported(f"-XX:SharedArchiveFile={archive} -Xlog:class+load:file={log}")
    loaded = log.read_text()
    assert loaded.count("source: shared objects file (top)") > loaded.count("source: file:")
