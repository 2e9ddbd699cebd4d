"""Starts Spark, and provides the data used by all steps of a run.

The JVM only starts the tasks and, for remote paths, lists files and moves bytes to and from Python. A small heap, the
serial collector and the C1 compiler are therefore sufficient for 20 million records.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from proxy.errors import ConfigError
from proxy.report.request import Request
from proxy.report.storage import HadoopFiles, LocalFiles, Storage, translated

#: Set by spark-submit for the program that it starts.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
#: Variables that name directories with configuration of Spark or Hadoop, which may define the default file system.
CONFIGURATION = {"HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"}

#: Settings on which the report depends.
FIXED = {
    # A partial is a binary value that is already compressed.
    "spark.sql.parquet.compression.codec": "uncompressed",
    # The driver already has the names of the segments, so no job is needed to list them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # A task always reads whole files, and opens a file in the time in which it could read this number of bytes.
    "spark.sql.files.openCostInBytes": "65536",
    # Without reuse, the worker processes end, so DuckDB's memory is released before the tables are created.
    "spark.python.worker.reuse": "false",
    # Retention may remove a segment between listing and reading.
    "spark.sql.files.ignoreMissingFiles": "true",
    # A task's file becomes visible when the task is done, so the finished partials of a killed run are kept.
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


@dataclass(frozen=True, slots=True)
class Run:
    """Data used by all steps of one run."""

    request: Request
    session: LazySession
    storage: Storage
    output: str  # output directory
    work: Path  # temporary directory on this machine
    duck: duckdb.DuckDBPyConnection

    def read_text(self, path: str) -> str:
        """Read a text file; return "" if the file does not exist."""
        local = self.storage.fetch(path, self.work)
        with translated(path), suppress(FileNotFoundError):
            return local.read_text("utf-8")
        return ""

    def read_json(self, path: str) -> dict[str, Any]:
        """Read a JSON object; return {} if the file does not exist or was left incomplete by a killed run."""
        try:
            return dict(json.loads(self.read_text(path)))
        except ValueError:
            return {}

    def write_text(self, path: str, content: str) -> None:
        """Write a text file, which becomes visible when it is complete. An existing file is replaced."""
        local = self.work / "content"
        local.write_text(content, "utf-8")
        self.storage.put(local, path)


class LazySession:
    """Spark for a request. Spark is started when it is first needed, and stopped at the end of a `with` statement.

    If no cluster is configured, paths without a scheme and ``file:`` paths are accessed without Spark.
    """

    def __init__(self, request: Request) -> None:
        self._settings = chosen(request)

    def __enter__(self) -> LazySession:
        return self

    def __exit__(self, *_: object) -> None:
        if "context" in self.__dict__:
            self.context.stop()

    @functools.cached_property
    def context(self) -> SparkContext:
        """The Spark context, which starts tasks.

        Raises:
            ConfigError: Java is not installed, or Spark does not start.
        """
        with ThreadPoolExecutor(1) as thread:  # in the main thread, Spark would replace the handler of SIGINT
            return thread.submit(self._start).result()

    @functools.cached_property
    def spark(self) -> SparkSession:
        """The Spark SQL session, which takes as long to start as the context."""
        return SparkSession(self.context)

    def _start(self) -> SparkContext:
        if _SUBMITTED not in os.environ and not has_java():
            needed = "requires Java 17 or newer (apt-get install default-jre-headless)"
            raise ConfigError("oxproxy report", 0, "", needed)
        settings = {"spark.app.name": "oxproxy report"} | self._settings
        if self._settings.get("spark.master", "").startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for the tasks
        try:
            return SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
        except (PySparkRuntimeError, Py4JJavaError) as error:
            reason = getattr(error, "java_exception", error)
            raise ConfigError("oxproxy report", 0, "", f"Spark does not start: {reason}") from error

    def storage(self, *paths: str) -> Storage:
        is_local = self._settings.get("spark.master", "").startswith("local") and not CONFIGURATION & os.environ.keys()
        names_cluster = any(name.startswith("spark.hadoop.") for name in self._settings.keys() - FIXED.keys())
        schemes = {urlsplit(path).scheme for path in paths}
        return LocalFiles() if is_local and not names_cluster and schemes <= {"", "file"} else HadoopFiles(self.context)


@contextmanager
def opened(session: LazySession, request: Request) -> Iterator[Run]:
    """Yield the data used by all steps of one run of a command.

    Raises:
        ConfigError: the input does not exist, or a file operation failed.
    """
    storage = session.storage(request.input, request.output)
    if not storage.is_folder(request.input):
        raise ConfigError(request.input, 0, "--input", "no such directory")
    with tempfile.TemporaryDirectory(prefix="oxproxy-report-") as folder, duckdb.connect() as duck:
        duck.execute(f"SET TimeZone = 'UTC'; SET memory_limit = '700MB'; SET temp_directory = '{folder}/spill'")
        duck.execute("SET preserve_insertion_order = false")
        yield Run(request, session, storage, request.output, Path(folder), duck)


def chosen(request: Request) -> dict[str, str]:
    master = {} if request.master is None else {"spark.master": request.master}
    is_local = _SUBMITTED not in os.environ if request.master is None else request.master.startswith("local")
    return FIXED | (LOCAL if is_local else {}) | master | dict(request.settings)


def has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java").is_file() if home else shutil.which("java") is not None
