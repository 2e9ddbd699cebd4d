from __future__ import annotations

import os
import signal
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace

import pytest

from oxproxy.cli.main import main
from oxproxy.errors import ConfigError
from oxproxy.report import job
from oxproxy.report.job import Summary
from oxproxy.report.request import Request, day, setting

NOW = datetime(2026, 11, 21, 0, 30, tzinfo=UTC)
D20, D21, D22 = (date(2026, 11, number) for number in (20, 21, 22))


def request(since: date | None = None, until: date | None = None) -> Request:
    return Request("in", "out", since, until, now=NOW)


@pytest.mark.parametrize(("text", "expected"), [("2026-11-20", D20), ("today", D21), ("yesterday", D20)])
def test_a_day_is_a_date_today_or_yesterday(text: str, expected: date) -> None:
    assert day(text, "--since", NOW) == expected


@pytest.mark.parametrize("text", ["", "2026-13-01", "20261120", "2026-11-20T07", "tomorrow", "2026-W47-5"])
def test_an_invalid_day_is_an_error_that_names_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--since: got .* expected a day"):
        day(text, "--since", NOW)


def test_a_range_without_a_first_day_has_no_listed_days() -> None:
    assert request().named_days() is None
    assert request(until=D20).named_days() is None


def test_a_range_lists_each_day_up_to_the_last() -> None:
    assert request(D20, D22).named_days() == [D20, D21, D22]


def test_a_range_without_a_last_day_ends_with_the_day_of_the_run() -> None:
    assert request(D20).named_days() == [D20, D21]


def test_a_range_includes_its_first_and_last_day() -> None:
    assert [known for known in (D20, D21, D22) if request(D20, D21).wants(known)] == [D20, D21]
    assert [known for known in (D20, D21, D22) if request(until=D21).wants(known)] == [D20, D21]


@pytest.mark.parametrize(("since", "until"), [(D21, D20), (D22, None)])
def test_a_range_that_ends_before_its_first_day_is_an_error(since: date, until: date | None) -> None:
    with pytest.raises(ConfigError, match=r"^oxproxy: --since: .* comes after the last day"):
        request(since, until)


def test_a_setting_may_have_an_equals_sign_in_its_value() -> None:
    assert setting("spark.driver.extraJavaOptions=-Da=b") == ("spark.driver.extraJavaOptions", "-Da=b")


@pytest.mark.parametrize("text", ["spark.ui.enabled", "ui.enabled=false", "=x"])
def test_an_invalid_spark_setting_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected spark\.NAME=VALUE"):
        setting(text)


def test_a_master_without_a_scheme_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--input", "in", "--output", "out", "--master", "host:7077"]) == 2
    expected = 'oxproxy: --master: got "host:7077", expected local, yarn, or a URL such as spark://HOST:7077\n'
    assert capsys.readouterr().err == expected


def test_the_last_day_of_a_stream_is_that_of_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [NOW]
    days: list[tuple[date | None, date | None]] = []

    def run(_: object, request: Request) -> Summary:
        days.append((request.since, request.until))
        clock.append(NOW + timedelta(days=1))
        if len(days) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return Summary("page", [], 0, 0, 0, [], [], {}, 0, [], [])

    monkeypatch.setattr("oxproxy.report.request.datetime", SimpleNamespace(now=lambda _: clock[-1]))
    monkeypatch.setattr(job, "run", run)
    monkeypatch.setattr(job, "CHECK_SECONDS", 0)
    words = ["--since", "yesterday", "--until", "today"]
    assert main(["report", "--input", "in", "--output", "out", "--stream", *words]) == 0
    assert days == [(D20, D21), (D20, D22)]
