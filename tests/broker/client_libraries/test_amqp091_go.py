from __future__ import annotations

import subprocess

import pytest

from tests.broker.client_libraries.programs import BUILT, PROGRAMS, Application, ApplicationTests

#: Where Debian installs libraries.
LIBRARIES = "/usr/share/gocode"


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Application:
    program = tmp_path_factory.mktemp("go") / "application"
    # The cache makes later compilations faster: the first one takes half a minute.
    environment = {"GOPATH": LIBRARIES, "GO111MODULE": "off", "GOCACHE": str(BUILT / "go"), "PATH": "/usr/bin:/bin"}
    command = ["go", "build", "-o", str(program), str(PROGRAMS / "application.go")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Application([program])


class TestAmqp091Go(ApplicationTests):
    library = "amqp091-go"
    product = "AMQP 0.9.1 Client"
