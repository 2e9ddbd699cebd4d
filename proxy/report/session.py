"""Starts Spark.

By default, Spark uses all cores of this machine, listens only on loopback and has no web page. On a cluster,
spark-submit or ``--master`` determines the master and all other settings. The JVM only lists files and moves bytes to
and from Python. A small heap, the serial collector and the C1 compiler are therefore sufficient for 20 million records.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from proxy.errors import ConfigError
from proxy.report.request import Request

#: Set by spark-submit for the program that it starts.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"

#: Settings on which the report depends.
FIXED = {
    # A partial is a binary value that is already compressed.
    "spark.sql.parquet.compression.codec": "uncompressed",
    # The driver already has the names of the segments, so no job is needed to list them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # The end of the worker processes releases DuckDB's memory before the tables are created.
    "spark.python.worker.reuse": "false",
    # Retention may remove a segment between listing and reading.
    "spark.sql.files.ignoreMissingFiles": "true",
    # A task's file becomes visible when the task is done, so a killed run leaves its finished partials.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.showConsoleProgress": "false",
}

_QUIET = Path(__file__).with_name("log4j2.properties")
#: Settings that apply only to runs on this machine.
LOCAL = {
    "spark.master": "local[*]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_QUIET.as_uri()} -XX:+UseSerialGC "
    "-XX:TieredStopAtLevel=1 -Xshare:auto",
}


@contextmanager
def session(request: Request) -> Iterator[SparkSession]:
    """Start Spark for a request, and stop it at the end.

    Raises:
        ConfigError: Java is not installed, or Spark does not start.
    """
    wanted = chosen(request, os.environ)
    if _SUBMITTED not in os.environ and not _has_java(os.environ):
        raise ConfigError("oxproxy report", 0, "", "requires Java 17 or newer (apt-get install default-jre-headless)")
    if wanted.get("spark.master", "").startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for the tasks
    builder = SparkSession.builder.appName("oxproxy report")
    for name, value in wanted.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise ConfigError("oxproxy report", 0, "", f"Spark does not start: {error}") from error
    try:
        yield spark
    finally:
        spark.stop()


def chosen(request: Request, environment: Mapping[str, str]) -> dict[str, str]:
    """Choose the initial settings; ``environment`` shows whether spark-submit started this process."""
    wanted = dict(FIXED)
    local = request.master is None and _SUBMITTED not in environment
    if local or (request.master or "").startswith("local"):
        wanted |= LOCAL
    if request.master is not None:
        wanted["spark.master"] = request.master
    return wanted | dict(request.settings)


def _has_java(environment: Mapping[str, str]) -> bool:
    home = environment.get("JAVA_HOME")
    return Path(home, "bin", "java").is_file() if home else shutil.which("java") is not None
