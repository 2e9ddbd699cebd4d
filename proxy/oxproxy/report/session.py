"""Starts Spark and its jobs, and provides the data used by all steps of a run.

The JVM only starts the tasks and, for remote paths, lists files and moves bytes to and from Python. A small heap, the
serial collector and the C1 compiler are therefore sufficient for 20 million records. Small jobs on local files run in
this process, in less time than Spark takes to start.
"""

from __future__ import annotations

import functools
import json
import operator
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import duckdb
from py4j.protocol import Py4JJavaError
from pyspark import RDD, SparkConf, SparkContext, StorageLevel
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from oxproxy.errors import ConfigError
from oxproxy.report import partials
from oxproxy.report.days import LAST, Made, Part, made_contents
from oxproxy.report.files.storage import Entry, HadoopFiles, LocalFiles, Storage, literal, translated
from oxproxy.report.files.temporary import temporary
from oxproxy.report.hours import Hour, merged_contents
from oxproxy.report.progress import Progress
from oxproxy.report.request import Request

Input = TypeVar("Input")
Output = TypeVar("Output")

#: Set by spark-submit for the program that it starts.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
#: Variables that name directories with configuration of Spark or Hadoop, which may define the default file system.
CONFIGURATION = {"HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"}

#: Settings on which the report depends.
FIXED = {
    # The driver already has the names of the segments, so no job is needed to list them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # A task always reads whole files, and opens a file in the time in which it could read this number of bytes.
    "spark.sql.files.openCostInBytes": "65536",
    # Retention may remove a segment between listing and reading.
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.showConsoleProgress": "false",
}

#: Jobs on local files that read fewer bytes run without Spark, unless it is running already.
_SMALL_BYTES = 8 << 20
#: Remote segments up to this stored size are held in memory, one per core; larger segments are copied to the driver. A
#: sidecar's segment contains at most 128 MiB of text, which compression reduces to about a tenth.
_WHOLE_BYTES = 24 << 20

_CONNECT_SECONDS = 5
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
#: The line of a Python traceback that names the error.
_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b.*")

_QUIET = Path(__file__).absolute().with_name("log4j2.properties")  # absolute also in the archive on a cluster
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
    progress: Progress

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
        self._stack = ExitStack()

    def __enter__(self) -> LazySession:
        return self

    def __exit__(self, *_: object) -> None:
        if "context" in self.__dict__:
            self.context.stop()
        self._stack.close()

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
        _check_master(self._settings.get("spark.master", ""))
        settings = {"spark.app.name": "oxproxy report"} | self._settings
        if self._is_local:
            folder = self._stack.enter_context(temporary())  # also removed after the process has been killed
            settings.setdefault("spark.local.dir", str(folder))
        if self._settings.get("spark.master", "").startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for the tasks
        try:
            return SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
        except (PySparkRuntimeError, Py4JJavaError) as error:
            reason = getattr(error, "java_exception", error)
            raise ConfigError("oxproxy report", 0, "", f"Spark does not start: {reason}") from error

    @property
    def _is_local(self) -> bool:
        return self._settings.get("spark.master", "").startswith("local")

    def needs_spark(self, cost: int) -> bool:
        """Return True if a job on local files, which reads the given number of bytes, runs in Spark."""
        return "context" in self.__dict__ or cost > _SMALL_BYTES

    def mapped(
        self, function: Callable[[Input], Output], inputs: Sequence[Input], cost: int, progress: Progress
    ) -> list[Output]:
        """Return the results of a function for all inputs, each of which is a task on files of this machine.

        Args:
            cost: number of bytes that all tasks read.
        """
        if not self.needs_spark(cost) or not inputs:
            results = []
            for number, task in enumerate(inputs, 1):
                results.append(function(task))
                progress.fraction = functools.partial(operator.truediv, number, len(inputs))
            return results
        progress.fraction = self._fraction
        return list(self.context.parallelize(inputs, len(inputs)).map(function).collect())

    def counter(self, progress: Progress, *, in_spark: bool) -> Callable[[int], None]:
        """Return a function with which tasks count records. Spark adds the counts of a task when it has ended."""
        if in_spark:
            total = self.context.accumulator(0)
            progress.records = lambda: int(total.value)
            count: Callable[[int], None] = total.add
            return count
        counts: list[int] = []
        progress.records = functools.partial(sum, counts)
        return counts.append

    def _fraction(self) -> float:
        """Return the fraction of tasks of the running stages that are done."""
        tracker = self.context.statusTracker()
        stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
        tasks = sum(stage.numTasks for stage in stages)
        return sum(stage.numCompletedTasks for stage in stages) / tasks if tasks else 0.0

    def merged(
        self, run: Run, job: Sequence[Entry], hours: Mapping[int, Hour]
    ) -> Iterator[tuple[Hour, dict[str, bytes]]]:
        """Read segments and merge them into hours with Spark, and yield the new versions.

        Args:
            hours: the current versions.
        """
        run.progress.fraction = self._fraction
        count = self.counter(run.progress, in_spark=True)
        read = functools.partial(partials.read_contents, traced=run.request.trace, count=count)
        pieces = self.context.emptyRDD()
        if small := [segment.path for segment in job if segment.size <= _WHOLE_BYTES]:
            pieces = self._contents(small, "path", "unix_millis(modificationTime)", "content").mapPartitions(read)
        for segment in job:
            if segment.size > _WHOLE_BYTES:
                copy = run.storage.fetch(segment.path, run.work)
                made = partials.read_files([(segment, copy)], run.request.trace, run.work, count)
                copy.unlink(missing_ok=True)
                rows = [(unit, (name, path.read_bytes())) for units, name, path in made for unit in units]
                for _, _, path in made:
                    path.unlink()
                pieces = pieces.union(self.context.parallelize(rows, 1))
        pieces = pieces.persist(StorageLevel.DISK_ONLY)
        units = pieces.keys().distinct().collect()
        run.progress.step("merging hours", len(units))
        run.progress.fraction = self._fraction
        parts = pieces.mapValues(_as_new)
        names = {
            f"{run.output}/{hours[unit].folder}/{name}.parquet": (unit, name)
            for unit in units
            if unit in hours
            for name in hours[unit].tables
        }
        if names:
            old = self._contents(list(names), "path", "content").map(functools.partial(_as_old, names=names))
            parts = parts.union(old)
        tasks = min(len(units), 4 * self.context.defaultParallelism) or 1
        yield from self._returned(parts.groupByKey(tasks).mapPartitions(merged_contents))
        pieces.unpersist()

    def made(
        self, parts: Sequence[Part], directories: Mapping[int, str], eve: str, progress: Progress
    ) -> Iterator[Made]:
        """Create parts of the tables of a day with Spark, and yield them.

        Args:
            directories: directory of the tables of each hour of the day.
            eve: file with the last publish numbers of the previous day, which may be missing.
        """
        progress.fraction = self._fraction
        wanted: dict[str, list[tuple[int, int, str]]] = {}
        for number, part in enumerate(parts):
            for hour, table in part.hours:
                wanted.setdefault(f"{directories[hour]}/{table}.parquet", []).append((number, hour, table))
            if part.name == "numbers" and eve:
                wanted.setdefault(eve, []).append((number, 0, LAST))
        contents = self._contents(list(wanted), "path", "content").flatMap(functools.partial(_sent, wanted=wanted))
        grouped = contents.groupByKey(len(parts)).mapPartitions(functools.partial(_with_part, parts=list(parts)))
        yield from self._returned(grouped.mapPartitions(made_contents))

    def _contents(self, paths: Sequence[str], *columns: str) -> RDD[Any]:
        """Return columns of Spark's data source for binary files."""
        files = self.spark.read.format("binaryFile").load([literal(path) for path in paths])
        return files.selectExpr(*columns).rdd

    def _returned(self, results: RDD[Any]) -> Iterator[Any]:
        """Yield the results of tasks, which run in parallel, one partition at a time."""
        kept = results.persist(StorageLevel.DISK_ONLY)
        kept.count()
        yield from kept.toLocalIterator()
        kept.unpersist()

    def storage(self, *paths: str) -> Storage:
        is_local = self._is_local and not CONFIGURATION & os.environ.keys()
        names_cluster = any(name.startswith("spark.hadoop.") for name in self._settings.keys() - FIXED.keys())
        schemes = {urlsplit(path).scheme for path in paths}
        return LocalFiles() if is_local and not names_cluster and schemes <= {"", "file"} else HadoopFiles(self.context)


@contextmanager
def opened(
    session: LazySession, request: Request, command: str = "oxproxy report", *, of_input: bool = True
) -> Iterator[Run]:
    """Yield the data used by all steps of one run of a command.

    Args:
        of_input: whether the command reads the audit log.

    Raises:
        ConfigError: the input does not exist, or a file operation failed.
    """
    storage = session.storage(request.input, request.output)
    if of_input and not storage.is_folder(request.input):
        raise ConfigError(request.input, 0, "--input", "no such directory")
    with temporary() as folder, duckdb.connect() as duck, Progress(command) as progress:
        duck.execute(f"SET TimeZone = 'UTC'; SET memory_limit = '700MB'; SET temp_directory = '{folder}/spill'")
        duck.execute("SET preserve_insertion_order = false")
        yield Run(request, session, storage, request.output, folder, duck, progress)


@contextmanager
def explained(step: str, command: str = "oxproxy report") -> Iterator[None]:
    """Translate errors of Spark, DuckDB and files to a `ConfigError` of one sentence, which names the step."""
    try:
        yield
    except (Py4JJavaError, PySparkException, duckdb.Error, OSError) as error:
        raise ConfigError(command, 0, "", _sentence(step, error)) from error


def _sentence(step: str, error: Any) -> str:  # an exception from one of several libraries
    text = str(getattr(error, "java_exception", None) or error)
    if missing := _NO_MODULE.search(text):
        return f"Spark's executors have no Python module {missing[1]} (docs/reference/audit.md, On a cluster)"
    reasons = [line.strip() for line in text.splitlines() if line.startswith("Caused by: ")]
    if "Python worker" in text:
        # A traceback ends with the name of the error. Its message may have several lines, of which the first is used.
        reasons = [line for line in text.splitlines() if _ERROR.match(line)]
    reason = reasons[-1].removeprefix("Caused by: ") if reasons else text.splitlines()[0]
    return f"{step} failed: {reason}"


def _as_new(piece: tuple[str, bytes]) -> tuple[str, bytes, bool]:
    return (*piece, False)


def _as_old(row: tuple[str, bytes], names: Mapping[str, tuple[int, str]]) -> tuple[int, tuple[str, bytes, bool]]:
    unit, name = names[row[0]]
    return unit, (name, bytes(row[1]), True)


def _sent(
    row: tuple[str, bytes], wanted: Mapping[str, Sequence[tuple[int, int, str]]]
) -> Iterator[tuple[int, tuple[int, str, bytes]]]:
    """Yield the content of a file for each task that reads it."""
    for number, hour, table in wanted[row[0]]:
        yield number, (hour, table, bytes(row[1]))


def _with_part(
    rows: Iterable[tuple[int, Iterable[tuple[int, str, bytes]]]], parts: Sequence[Part]
) -> Iterator[tuple[Part, Iterable[tuple[int, str, bytes]]]]:
    for number, contents in rows:
        yield parts[number], contents


def _check_master(master: str) -> None:
    """Check that a standalone master can be reached, since Spark would retry for a minute and print stack traces.

    Raises:
        ConfigError: none of the master's addresses accepts connections.
    """
    if not master.startswith("spark://"):
        return
    reason = ""
    for text in master.removeprefix("spark://").split(","):
        try:
            address = urlsplit(f"//{text}")
            if address.hostname and address.port:
                socket.create_connection((address.hostname, address.port), _CONNECT_SECONDS).close()
                return
            reason = "expected spark://HOST:PORT"
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
    raise ConfigError("oxproxy", 0, "--master", f"can't connect to {master}: {reason}")


def chosen(request: Request) -> dict[str, str]:
    master = {} if request.master is None else {"spark.master": request.master}
    is_local = _SUBMITTED not in os.environ if request.master is None else request.master.startswith("local")
    return FIXED | (LOCAL if is_local else {}) | master | dict(request.settings)


def has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java").is_file() if home else shutil.which("java") is not None
