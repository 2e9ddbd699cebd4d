from __future__ import annotations

from typing import Any

import pytest

from tests.broker.client_libraries.programs import BUILT, PROGRAMS, Application, ApplicationTests


@pytest.fixture(scope="module")
def application() -> Application:
    return Application(["node", PROGRAMS / "application.js"], {"NODE_PATH": str(BUILT / "node_modules")})


class TestAmqplib(ApplicationTests):
    library = "amqplib"
    product = "amqplib"

    test_it_commits_and_rolls_back: Any = None  # it has no transactions
