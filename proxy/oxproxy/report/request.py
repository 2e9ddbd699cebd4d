"""Parameters of a report.

This module does not import Spark, since the command line builds a request before it checks for Spark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from oxproxy.errors import ConfigError

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_WORDS = {"today": 0, "yesterday": 1}
#: How the names of Spark's masters begin. Spark prints a Java stack trace for other names.
_MASTERS = ("local", "yarn", "spark://", "k8s://")


@dataclass(frozen=True, slots=True)
class KnownBinding:
    """A binding in the rules files. It is reported as dead if it has no matches."""

    vhost: str
    exchange: str
    binding: str  # id as in the audit log
    rules: str  # version of the rules files


@dataclass(frozen=True, slots=True)
class Request:
    """One run of the report, or a search for one message."""

    input: str  # directory of the audit log: a path, or a URI that Hadoop supports
    output: str  # directory for tables and pages: a path or a URI, as for `input`; empty in a search without a report
    since: date | None = None  # first day (UTC); None: the oldest day in the log
    until: date | None = None  # last day; None: the newest day
    master: str | None = None  # Spark master; None: the master set by spark-submit, otherwise all cores of this machine
    bindings: tuple[KnownBinding, ...] | None = None  # None if no rules file is given
    settings: tuple[tuple[str, str], ...] = ()  # Spark settings from the user, which override those of the report
    trace: bool = False  # whether the table of all publishes with a message id is requested
    forget: bool = False  # whether partials of deleted segments are removed
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        """Reject an unusable master, an end before the start, and a start in the future without an end."""
        if self.master is not None and not self.master.startswith(_MASTERS):
            text = f'got "{self.master}", expected local, yarn, or a URL such as spark://HOST:7077'
            raise ConfigError("oxproxy", 0, "--master", text)
        if self.since is not None and self.since > self.last_day:
            raise ConfigError("oxproxy", 0, "--since", f"{self.since} comes after the last day, {self.last_day}")

    @property
    def last_day(self) -> date:
        """The last requested day; by default, the day of the run."""
        return self.until or self.now.astimezone(UTC).date()

    def wants(self, day: date) -> bool:
        return (self.since is None or day >= self.since) and (self.until is None or day <= self.until)

    def lists(self, day: date) -> bool:
        """Return True if a day, or the day before it, is requested, since publishes may be settled after midnight."""
        return self.wants(day) or (day > date.min and self.wants(day - timedelta(days=1)))

    def named_days(self) -> list[date] | None:
        """Return each day of the requested range; None if no first day is given."""
        if self.since is None:
            return None
        return [self.since + timedelta(days=number) for number in range((self.last_day - self.since).days + 1)]


def parsed_day(text: str) -> date | None:
    """Parse a day in ISO 8601 format; return None if the string has another format."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def day(text: str, option: str, now: datetime | None = None) -> date:
    """Parse a day on the command line: ``2026-11-21``, ``today`` or ``yesterday`` (UTC)."""
    if text in _WORDS:
        return (now or datetime.now(UTC)).astimezone(UTC).date() - timedelta(days=_WORDS[text])
    if _DAY.fullmatch(text) and (named := parsed_day(text)):
        return named
    raise ConfigError("oxproxy", 0, option, f'got "{text}", expected a day such as 2026-11-21, today or yesterday')


def setting(text: str) -> tuple[str, str]:
    """Parse a Spark setting on the command line, such as ``spark.driver.memory=4g``."""
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise ConfigError("oxproxy", 0, "--conf", f'got "{text}", expected spark.NAME=VALUE')
    return name, value
