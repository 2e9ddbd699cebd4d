from __future__ import annotations

import pytest

from tests.broker.client_libraries.programs import PROGRAMS, Application, ApplicationTests


@pytest.fixture(scope="module")
def application() -> Application:
    return Application(["ruby", PROGRAMS / "application.rb"])


class TestBunny(ApplicationTests):
    library = "Bunny"
    product = "Bunny"
    recovers = True
