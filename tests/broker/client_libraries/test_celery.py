"""Runs the example of docs/how-to/celery.md, and further tasks, with workers that are connected through a sidecar."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.client_libraries.programs import PROGRAMS, through
from tests.broker.delivery.site import Site, standing
from tests.producer import until
from tests.rabbitmq import Broker

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "celery.md").read_text()
(RULES,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
TASKS, PUBLISH, DECLARED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(PRINTED,) = re.findall(r"^This prints:\n\n((?:    .*\n)+)", PAGE, re.MULTILINE)
#: The broker of the page's applications.
BROKER_URL = "amqp://guest:guest@127.0.0.1:5673//"
#: An exchange with a filter, for messages that are refused.
STRICT = "  - {name: strict, arguments: {max-payload-size: 1}, bindings: [{queue: celery}]}\n"

#: Maximum seconds for a script; each takes at most five.
SCRIPT_SECONDS = 60

#: Maximum seconds until a worker has connected again: it waits for 2 s before the first attempt, then 4 s, and so on.
RECONNECT_SECONDS = 90

pytestmark = pytest.mark.timeout(300)


class Place:
    """A directory with the modules of the applications, in which scripts and workers run."""

    def __init__(self, site: Site, directory: Path) -> None:
        self.site = site
        self.directory = directory
        for name, text in (("tasks", TASKS), ("publish", PUBLISH), ("declared", DECLARED)):
            (directory / f"{name}.py").write_text(text.replace(BROKER_URL, through(site)))
        (directory / "more.py").write_text((PROGRAMS / "celery_tasks.py").read_text())

    def run(self, *command: str) -> str:
        """Run a script, and return its output."""
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=SCRIPT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextlib.contextmanager
    def worker(self, application: str, *queues: str, broker: str = "") -> Iterator[Path]:
        """A worker with one process; yields its log after it has begun to consume.

        Args:
            application: name of the module.
            queues: queues from which it consumes.
            broker: URL to use instead of that of the application.
        """
        log = self.directory / f"{application}.log"
        arguments = ["-A", application, "worker", "-Q", ",".join(queues), "-n", f"{application}@here", "-E"]
        options = ["--broker", broker] if broker else []
        command = [sys.executable, "-m", "celery", *options, *arguments, "--pool=solo", "--loglevel=info"]
        with log.open("w") as file, subprocess.Popen(command, cwd=self.directory, stdout=file, stderr=file) as process:
            try:
                until(lambda: "@here ready." in log.read_text())
                yield log
                process.send_signal(signal.SIGTERM)
                process.wait(SCRIPT_SECONDS)
            finally:
                process.kill()


@pytest.fixture(scope="module")
def place(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    rules = RULES.replace("tests:\n", f"{STRICT}tests:\n")
    with standing(broker, tmp_path_factory.mktemp("celery"), rules) as site:
        yield Place(site, tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def worker(place: Place) -> Iterator[Path]:
    with place.worker("more", "celery", "reports", "reports.acme", "everyone") as log:
        yield log


def test_tasks_are_routed_by_name_and_header(place: Place) -> None:
    place.run("-c", PUBLISH.replace("print(", "").replace(".get(timeout=30))", ""))
    messages = {queue: place.site.take(queue) for queue in ("celery", "reports", "reports.acme")}
    tasks = {queue: [message.headers["task"].value for message in those] for queue, those in messages.items()}
    assert tasks == {"celery": [b"tasks.add"], "reports": [b"tasks.report"], "reports.acme": [b"tasks.report"] * 2}
    [first, _] = messages["reports.acme"]
    letters = {name: first.headers[name].letter for name in ("task", "retries", "eta", "argsrepr", "origin", "tenant")}
    assert letters == {"task": "S", "retries": "I", "eta": "V", "argsrepr": "S", "origin": "S", "tenant": "S"}


def test_the_example_prints_what_the_page_states(place: Place, worker: Path) -> None:
    assert place.run("publish.py") == re.sub("^    ", "", PRINTED, flags=re.MULTILINE)


def test_callbacks_errbacks_broadcasts_control_and_events_work(place: Place, worker: Path) -> None:
    assert place.run("-c", "from more import use; use()").splitlines() == [
        "chain 9",
        "group [1, 3]",
        "failure ValueError",
        "ping pong",
        "registered True",
        "event task-succeeded",
        "refused 406",
    ]
    until(lambda: "alerted of a failure" in worker.read_text())
    until(lambda: "a broadcast arrived" in worker.read_text())


@pytest.mark.clients
def test_a_task_of_a_killed_worker_is_done_by_another(place: Place) -> None:
    with contextlib.suppress(AssertionError), place.worker("more", "celery") as log:
        place.run("-c", "from more import survive; survive.delay()")
        until(lambda: "about to be killed" in log.read_text())
    with place.worker("more", "celery") as log:
        until(lambda: "survived" in log.read_text())


@pytest.mark.clients
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_worker_continues_after_a_restart_of_the_sidecar(place: Place, worker: Path, end: signal.Signals) -> None:
    # In the 0.1 s after `ready`, Celery discards errors of the connection, and waits forever. A task is done later.
    assert place.run("publish.py")
    sidecar = place.site.sidecar
    os.kill(sidecar.process_id, end)
    sidecar.stop()
    sidecar.start()
    try:
        until(lambda: worker.read_text().count("Connected to amqp://") >= 2, RECONNECT_SECONDS)
    except AssertionError:
        pytest.fail(
            f"the worker did not connect again: {worker.read_text()[-3000:]}\n{sidecar.log.read_text()[-3000:]}"
        )
    assert place.run("publish.py")


@pytest.mark.clients
def test_bindings_can_be_declared_by_celery(place: Place) -> None:
    place.run(
        "-c",
        "from declared import app; [q(app.connection().channel()).declare() for q in app.amqp.queues.values()]",
    )
    place.run("-c", "from declared import where; where.apply_async(headers={'size': 5000}); where.delay()")
    assert [len(place.site.take(f"declared.{size}")) for size in ("large", "small")] == [1, 1]
    with place.worker("declared", "declared.large", "declared.small"):
        script = "from declared import where; print(where.apply_async(headers={'size': 5000}).get(timeout=30))"
        assert place.run("-c", script) == "['declared', '']\n"


@pytest.mark.clients
def test_a_retry_of_a_worker_that_bypasses_the_sidecar_is_dropped(place: Place) -> None:
    with place.worker("tasks", "reports", broker=place.site.broker.url(place.site.vhost)) as log:
        place.run("-c", "from tasks import report; report.delay(-1)")
        until(lambda: "Retry in 0s" in log.read_text())
    assert place.site.take("reports") == []
    assert "succeeded" not in log.read_text()
