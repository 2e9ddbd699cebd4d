"""Runs a back-test: converts new segments, judges all publishes, and combines the results.

Tables of segments are kept in the output directory and used again. A second run with the same output directory waits
until the first has finished, so that it does not remove tables that the first run reads.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

from oxproxy.errors import ConfigError
from oxproxy.report.backtest.judge import Judged, Share, judge_contents, judge_files
from oxproxy.report.backtest.page import render
from oxproxy.report.backtest.partials import FOLDER, TABLES, Group, convert_contents, convert_files, grouped
from oxproxy.report.backtest.result import BacktestResult, result_of
from oxproxy.report.files.storage import LocalFiles, LockedError, find_segments, literal, local_path, unit_folder
from oxproxy.report.pages import BACKTEST, PAGE, with_backtest
from oxproxy.report.request import Request
from oxproxy.report.session import LazySession, Run, explained, opened
from oxproxy.rules.loader import LoadedRules

_COMMAND = "oxproxy backtest"
#: Stored bytes of tables for each task that judges publishes, and tasks per core.
_TASK_BYTES, _TASKS_PER_CORE = 4 << 20, 2
_WAIT_SECONDS = 0.5
_Item = TypeVar("_Item")


def backtest(request: Request, loaded: LoadedRules, names: Sequence[str]) -> BacktestResult:
    """Judge the recorded publishes of the requested days.

    Args:
        request: without an output directory, the tables are temporary and no page is written.
        loaded: the candidate rules.
        names: the candidate's files as given on the command line, for commands.

    Raises:
        ConfigError: the input does not exist, or a file operation failed.
    """
    with LazySession(request) as session, opened(session, request, _COMMAND) as run, ExitStack() as stack:
        is_local = isinstance(run.storage, LocalFiles)
        if not request.output and not is_local:
            raise ConfigError("oxproxy", 0, "--output", "missing, expected a directory, since the log is not local")
        output = run.storage.whole(request.output or str(run.work / "output"))
        if request.output:
            stack.enter_context(_locked(run, output))
        run.progress.step("listing segments")
        groups = grouped(find_segments(run.storage, request.input, request.wants))
        with explained("reading the log", _COMMAND):
            _convert(run, groups, output, is_local)
            judged = _judge(run, groups, output, loaded.contents, is_local)
        result = result_of(judged, loaded, names, sum(len(group.segments) for group in groups))
        if request.output:
            report = PAGE if run.storage.exists(f"{output}/{PAGE}") else ""
            run.write_text(f"{output}/{BACKTEST}", render(result, report))
            result.page = f"{output}/{BACKTEST}"
            _link(run, f"{output}/{PAGE}", output)
        return result


def _link(run: Run, page: str, output: str) -> None:
    """Show the link to the back-test on the page of a report. A report that is running adds the link itself."""
    text = run.read_text(page)
    if with_backtest(text) != text:
        with suppress(LockedError), run.storage.locked(output):
            run.write_text(page, with_backtest(run.read_text(page)))


@contextmanager
def _locked(run: Run, output: str) -> Iterator[None]:
    """Lock the tables in an output directory; wait while another run has locked them."""
    folder = f"{output}/{FOLDER}"
    run.storage.make(folder)
    while True:
        with ExitStack() as stack:
            try:
                stack.enter_context(run.storage.locked(folder))
            except LockedError:
                pass
            else:
                yield
                return
        run.progress.step("waiting for another back-test")
        time.sleep(_WAIT_SECONDS)


def _convert(run: Run, groups: Sequence[Group], output: str, is_local: bool) -> None:
    """Create the tables of new groups, and remove those of groups that no longer exist in the same hours."""
    present: dict[int, set[str]] = {}
    for unit in {group.unit for group in groups}:
        entries = run.storage.entries(f"{output}/{FOLDER}/{unit_folder(unit)}")
        wanted = {group.folder.rpartition("/")[2] for group in groups if group.unit == unit}
        present[unit] = {entry.name for entry in entries if entry.is_folder} & wanted
        for entry in entries:
            if entry.name not in wanted:
                run.storage.remove(entry.path)
    new = [group for group in groups if group.folder.rpartition("/")[2] not in present[group.unit]]
    run.progress.step("reading segments", sum(len(group.segments) for group in new))
    if is_local:
        function = functools.partial(_convert_local, output=output)
        run.session.mapped(function, new, sum(group.size for group in new), run.progress)
    elif new:
        numbers = {segment.path: number for number, group in enumerate(new) for segment in group.segments}
        rows = _contents(run, list(numbers)).map(lambda row: (numbers[row[0]], (row[0], bytes(row[1]))))
        for number, files in rows.groupByKey(len(new)).mapPartitions(convert_contents).toLocalIterator():
            local = run.work / f"group-{number}"
            local.mkdir()
            for name, content in files.items():
                (local / name).write_bytes(content)
            run.storage.put(local, f"{output}/{new[number].folder}")


def _convert_local(group: Group, output: str) -> None:
    convert_files(group, [local_path(segment.path) for segment in group.segments], output)


def _contents(run: Run, paths: Sequence[str]) -> Any:  # a Spark RDD
    """Return paths and contents of files."""
    files = run.session.spark.read.format("binaryFile").load([literal(path) for path in paths])
    return files.select("path", "content").rdd


def _judge(
    run: Run, groups: Sequence[Group], output: str, contents: tuple[tuple[str, bytes], ...], is_local: bool
) -> Judged:
    judged = Judged()
    if not groups:
        return judged
    directories = {f"{output}/{group.folder}": group.size for group in groups}
    copies = _copies(run, directories)
    run.progress.step("judging publishes", sum(len(group.segments) for group in groups))
    size = sum(directories.values())
    parallel = not is_local or run.session.needs_spark(size)
    cores = run.session.context.defaultParallelism if parallel else 1
    shares = _divided(list(directories), min(1 + size // _TASK_BYTES, cores * _TASKS_PER_CORE) if parallel else 1)
    results: Iterable[Judged]
    if is_local:
        tasks = [
            Share(
                tuple(str(local_path(folder)) for folder in share),
                {str(local_path(folder)): copies[folder] for folder in share if folder in copies},
            )
            for share in shares
        ]
        results = run.session.mapped(functools.partial(judge_files, contents=contents), tasks, size, run.progress)
    else:
        places = {f"{folder}/{name}.parquet": (number, folder, f"{name}.parquet")
                  for number, share in enumerate(shares) for folder in share for name in TABLES[:2]}  # fmt: skip
        rows = _contents(run, list(places)).map(lambda row: (places[row[0]][0], (*places[row[0]][1:], bytes(row[1]))))
        function = functools.partial(judge_contents, excluded=copies, contents=contents)
        results = rows.groupByKey(len(shares)).mapPartitions(function).collect()
    for part in results:
        judged.add(part)
    return judged


def _copies(run: Run, directories: Iterable[str]) -> Mapping[str, tuple[int, ...]]:
    """Return the numbers of the segments, by directory, whose text is that of an earlier segment."""
    seen: set[str] = set()
    copies: dict[str, list[int]] = {}
    for folder in directories:
        local = run.storage.fetch(f"{folder}/segments.parquet", run.work)
        for number, content in run.duck.execute(f"SELECT segment, content FROM '{local}' ORDER BY segment").fetchall():
            if content in seen:
                copies.setdefault(folder, []).append(number)
            seen.add(content)
        local.unlink()
    return {folder: tuple(numbers) for folder, numbers in copies.items()}


def _divided(items: Sequence[_Item], count: int) -> list[Sequence[_Item]]:
    """Divide items into up to the given number of parts of about the same length, each with successive items."""
    count = min(count, len(items))
    return [items[number * len(items) // count : (number + 1) * len(items) // count] for number in range(count)]
