"""Shows the progress of a run on standard error: one line in a terminal, otherwise a line every 30 seconds.

The line names the current step. A thread writes it, so that the run itself only changes numbers.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from oxproxy.report.wording import several, whole

_TERMINAL_SECONDS, _LOG_SECONDS = 0.5, 30.0
_CLEAR = "\r\x1b[K"


class Progress:
    """The progress of one run.

    Args:
        command: name of the command, with which lines in a log begin.
        stream: where the progress is shown; None: standard error.
        seconds: time between two lines; None: depends on the stream.
    """

    def __init__(self, command: str, stream: TextIO | None = None, seconds: float | None = None) -> None:
        self._command = command
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._seconds = seconds or (_TERMINAL_SECONDS if self._is_terminal else _LOG_SECONDS)
        self._step, self._total = "", 0
        #: number of units of the step that are done
        self.done = 0
        #: fraction of the step that is done, if it is not counted in `done`
        self.fraction: Callable[[], float] | None = None
        #: number of records that have been read in the step; None if the step reads no records
        self.records: Callable[[], int] | None = None
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def step(self, step: str, total: int = 0) -> None:
        """Begin a step, with the number of units that it processes if this number is known."""
        self.fraction = self.records = None
        self._step, self._total, self.done = step, total, 0

    def __str__(self) -> str:
        fraction = self.fraction
        done = self.done if fraction is None else int(self._total * fraction())
        count = f", {whole(done)} of {whole(self._total)}" if self._total else ""
        records = f", {several(self.records(), 'record')}" if self.records else ""
        return f"{self._step}{count}{records}, {time.monotonic() - self._began:.0f} s"

    def _show(self) -> None:
        shown = False
        while not self._ended.wait(self._seconds):
            if self._step:
                text = str(self)
                width = shutil.get_terminal_size().columns - 1
                self._write(f"{_CLEAR}{text[:width]}" if self._is_terminal else f"{self._command}: {text}\n")
                shown = True
        if shown and self._is_terminal:
            self._write(_CLEAR)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the reader has closed it
            self._ended.set()
