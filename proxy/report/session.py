"""How does Spark start, and with which settings?

On one machine without a word from the operator: all cores, loopback only, no web page. On a cluster the master, and
all else, is what spark-submit or ``--master`` say. Nothing of this package runs on executors; their Python only hands
small lists of the driver on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from proxy.errors import ConfigError
from proxy.report.request import Request
from proxy.report.sizing import settings
from proxy.report.source import Volume

#: Set by spark-submit for the program that it starts.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"

#: Of no operator's business, and what the numbers depend on.
FIXED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    # Retention may remove a segment between listing and reading; the rest is to be read all the same.
    "spark.sql.files.ignoreMissingFiles": "true",
    # Staging writes a file for each kind of record at once instead of sorting by kind.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "true",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.ui.showConsoleProgress": "false",
}

_QUIET = Path(__file__).with_name("log4j2.properties")
#: For a run on this machine alone.
LOCAL = {
    "spark.master": "local[*]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_QUIET.as_uri()}",
}


@contextmanager
def session(request: Request) -> Iterator[SparkSession]:
    """Start Spark for a request, and stop it.

    Raises:
        ConfigError: there is no Java, or Spark does not start.
    """
    wanted = chosen(request, os.environ)
    if _SUBMITTED not in os.environ and not _has_java(os.environ):
        raise ConfigError("oxproxy report", 0, "", "needs Java 17 or newer (apt-get install default-jre-headless)")
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


def fitted(spark: SparkSession, request: Request, size: Volume) -> AbstractContextManager[None]:
    """Have the settings that fit an input for a while, those of the operator excepted.

    Args:
        spark: a running session.
        request: has the operator's settings.
        size: of the input.
    """
    fitting = settings(size, spark.sparkContext.defaultParallelism)
    return changed(spark, {name: fitting[name] for name in fitting.keys() - dict(request.settings).keys()})


@contextmanager
def changed(spark: SparkSession, others: Mapping[str, str]) -> Iterator[None]:
    """Have other settings for a while.

    Args:
        spark: a running session.
        others: those that may be changed in it, by name.
    """
    before = {name: spark.conf.get(name) or "" for name in others}
    try:
        for name, value in others.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def chosen(request: Request, environment: Mapping[str, str]) -> dict[str, str]:
    """Choose the settings to start with.

    Args:
        request: what is asked for.
        environment: of the process; tells whether spark-submit started it.
    """
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
