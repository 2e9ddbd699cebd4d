"""A pytest plugin with the fixture `oxproxy_rules`: the rules that the option ``oxproxy_rules`` of pytest names.

The report of a failed test contains the walk of each message that the test has explained. pytest loads this module at
its start, so the rules are imported only if a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from oxproxy.library.rule_set import RuleSet

OPTION = "oxproxy_rules"
#: The walks of the explained messages of a test, each with a title.
_WALKS = pytest.StashKey[list[tuple[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the configuration file."""
    parser.addini(OPTION, "rules files of the fixture oxproxy_rules, relative to the configuration file", type="args")


@pytest.fixture(scope="session")
def _loaded_rules(pytestconfig: pytest.Config) -> RuleSet:
    from oxproxy.errors import ConfigErrors
    from oxproxy.library.rule_set import load_rules

    names: list[str] = pytestconfig.getini(OPTION)
    if not names:
        expected = f"expected {OPTION} = rules/*.yaml in pytest's configuration file"
        pytest.fail(f"got no rules files, {expected}", pytrace=False)
    directory = pytestconfig.inipath.parent if pytestconfig.inipath else Path()
    try:
        return load_rules(*(directory / name for name in names))
    except ConfigErrors as errors:
        # Without the traceback, which says nothing about the rules.
        pytest.fail(f"the rules are not valid:\n{errors}", pytrace=False)


@pytest.fixture
def oxproxy_rules(_loaded_rules: RuleSet, request: pytest.FixtureRequest) -> RuleSet:
    """The rules that the option oxproxy_rules names, read once in a run."""
    walks = request.node.stash.setdefault(_WALKS, [])
    return _loaded_rules.observed(lambda title, walk: walks.append((title, walk)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the walks to the report of a failed test."""
    report = yield
    if report.failed:
        report.sections += _sections(item)
    return report


def _sections(item: pytest.Item) -> Iterator[tuple[str, str]]:
    for title, walk in item.stash.get(_WALKS, []):
        yield f"oxproxy: {title}", walk
