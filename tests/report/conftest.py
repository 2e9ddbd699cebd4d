"""A Spark session for all tests of the report. Without Java they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from oxproxy.report.request import Request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from oxproxy.report.session import LazySession


#: Default timeout of a test in seconds: the first one starts Spark, and CI runs other tests at the same time.
SPARK_SECONDS = 300


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use Spark, so that ``-m "not spark"`` excludes them."""
    for item in items:
        if {"session", "java"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_SECONDS))


@pytest.fixture(scope="session")
def java() -> None:
    """Skip the test if Java or pyspark is missing."""
    pytest.importorskip("pyspark")
    from oxproxy.report.session import has_java

    if not has_java():
        pytest.skip("no Java runtime (apt-get install default-jre-headless)")


@pytest.fixture(scope="session")
def session(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LazySession]:
    """A Spark session on two cores, shared by all tests."""
    from oxproxy.report.session import LazySession

    folder = tmp_path_factory.mktemp("spark")
    own = (("spark.local.dir", str(folder)), ("spark.sql.warehouse.dir", str(folder)))
    with LazySession(Request("", "", master="local[2]", settings=own)) as running:
        yield running


@pytest.fixture(scope="session")
def spark(session: LazySession) -> SparkSession:
    return session.spark
