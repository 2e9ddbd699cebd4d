from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from proxy.errors import ConfigError
from proxy.report.request import Request
from proxy.report.session import FIXED, LOCAL, changed, chosen, session

SUBMITTED = {"PYSPARK_GATEWAY_PORT": "1"}


def request(master: str | None = None, *settings: tuple[str, str]) -> Request:
    return Request("in", "out", master=master, settings=settings)


@pytest.mark.parametrize("master", [None, "local[2]"])
def test_on_this_machine_nothing_listens_beyond_loopback(master: str | None) -> None:
    settings = chosen(request(master), {})
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.master"] == (master or "local[*]")


@pytest.mark.parametrize(("master", "environment"), [("spark://host:7077", {}), (None, SUBMITTED)])
def test_on_a_cluster_its_own_settings_hold(master: str | None, environment: dict[str, str]) -> None:
    settings = chosen(request(master), environment)
    assert not settings.keys() & (LOCAL.keys() - {"spark.master"})
    assert settings.get("spark.master") == master


def test_the_operator_has_the_last_word() -> None:
    assert chosen(request(None, ("spark.ui.enabled", "true")), {})["spark.ui.enabled"] == "true"


def test_the_running_session_has_what_the_numbers_depend_on(spark: SparkSession) -> None:
    assert {name: spark.conf.get(name) for name in FIXED if name.startswith("spark.sql")} == {
        name: value for name, value in FIXED.items() if name.startswith("spark.sql")
    }


def test_other_settings_hold_for_a_while_also_where_it_ends_badly(spark: SparkSession) -> None:
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    with changed(spark, {name: "77"}):
        assert spark.conf.get(name) == "77"
    assert spark.conf.get(name) == before
    with pytest.raises(ZeroDivisionError), changed(spark, {name: "77"}):
        _ = 1 / 0
    assert spark.conf.get(name) == before


def test_without_java_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="default-jre-headless"), session(request()):
        pass


def test_a_master_that_is_none_is_told_in_a_sentence(java: None, tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("oxproxy"))
    command = [program, "report", "--input", str(tmp_path), "--output", str(tmp_path / "out"), "--master", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 2
    assert "Spark does not start" in done.stderr
    assert "Traceback" not in done.stderr
