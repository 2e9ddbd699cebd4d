"""``oxproxy replay``: publishes parked messages again through a sidecar, and acks each one after its confirm.

A message is lost at no point: it is acked only after the broker has confirmed its publish. At most one message is in
flight: the next one is taken on the channel of the ack, so that the broker has processed the ack before it. If the
command is killed between a publish and its ack, this message is in the queue as well as at its destinations.

Messages that stay are not acked, so that the broker returns them, in order, when the channel is closed. A run ends
after the number of messages that were in the queue when it began.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from oxproxy.cli.admin_client import add_admin_arguments, admin_clients, client_host, listener_tls
from oxproxy.cli.commands import add_repeatable
from oxproxy.cli.console import (
    DONE,
    NO,
    between,
    json_line,
    load_rules_of,
    print_errors,
    print_line,
    printable,
    read_input,
    read_settings,
    required_configuration,
    rich_console,
)
from oxproxy.cli.parked import ParkedMessage, ReplayPlan, parked_message, question, verdict
from oxproxy.errors import ConfigError, ConfigErrors, ProtocolError, UpstreamError
from oxproxy.net.client import BlockingClient, ChannelClosed, Confirm, Login, TakenMessage
from oxproxy.values import LONGEST_NAME_BYTES, counted, remember_secret, text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_COMMAND = "oxproxy replay"
#: Exit status if interrupted, as in a shell: 128 plus the signal number of SIGINT.
_INTERRUPTED = 130
_PORTS = {"amqp": 5672, "amqps": 5671}
#: Numbers of the channel on which messages are taken and acked, and of the channel on which they are published. The
#: broker closes the latter if it refuses a publish.
_TAKING, _PUBLISHING = 1, 2
_MOST = 2**31 - 1
_LOWEST_RATE, _HIGHEST_RATE = 0.001, 1e6
#: Maximum number of rows of the table; further messages are counted in a last row.
_ROWS = 200
_COLUMNS = ("exchange", "routing key", "result", "destinations or reason")
_REPLAYED, _WOULD_BE, _STAYS = "replayed", "would be replayed", "stays"
_EXPECTED_URL = "expected amqp(s)://user:password@host:port/vhost of a sidecar"
_OTHER_RULES = (
    "the sidecar routes by its active rules; the files only determine which messages are published and what is shown"
)
_COUNTED = (
    "queue {} is a quorum queue, which drops or dead-letters a message after its delivery limit: each run, and each "
    "dry run, counts as a delivery of the messages that stay"
)
#: A run ends if a message can be returned only this number of times before the queue drops it.
_RETURNS_LEFT = 2
#: Default of RabbitMQ 4.0 and later. RabbitMQ 3 has no limit by default.
_DELIVERY_LIMIT = 20

#: Evaluates a message and returns the explanation.
Evaluator: TypeAlias = Callable[[ParkedMessage], dict[str, Any]]  # Any: JSON


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--queue", metavar="NAME", required=True, help="queue with the parked messages")
    parser.add_argument("--dry-run", action="store_true", help="only show where the messages would be sent")
    parser.add_argument(
        "--rules",
        metavar="FILE",
        type=Path,
        action="append",
        help="rules file or configuration with which messages are evaluated; - for standard input; can be repeated; "
        "default: the active rules of the sidecar",
    )
    add_repeatable(parser, "--match", "HEADER=VALUE", "only messages with this header")
    count = between(1, _MOST, f"an integer from 1 to {_MOST}")
    parser.add_argument(
        "--limit", metavar="N", type=count, help="maximum number of messages, without those not matched"
    )
    rate = between(_LOWEST_RATE, _HIGHEST_RATE, f"{_LOWEST_RATE} to {_HIGHEST_RATE:.0f} messages per second")
    parser.add_argument("--rate", metavar="N", type=rate, help="maximum number of publishes per second")
    parser.add_argument(
        "--delivery-limit",
        metavar="N",
        type=count,
        default=_DELIVERY_LIMIT,
        help="delivery limit of the queue, if it is a quorum queue; default: %(default)s",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help="amqp(s)://user:password@host:port/vhost of the sidecar; default: the first address in `listen` and the "
        "control user of the configuration",
    )
    parser.add_argument(
        "--password-file", metavar="FILE", help="file with the password of the user in --url; - for standard input"
    )
    parser.add_argument("--vhost", metavar="NAME", help="virtual host of the queue; default: from --url, or /")
    add_admin_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per message, and a summary")
    parser.set_defaults(usage_error=parser.error)


def run(options: argparse.Namespace) -> int:
    """Replay the messages, and print what became of them."""
    matches = _check_usage(options)
    login = _login(options)
    evaluate = _evaluator(options, login.vhost)
    if options.rules is not None and not options.dry_run:
        print_errors([_OTHER_RULES])
    try:
        client = BlockingClient(login)
    except UpstreamError as error:
        raise ConfigErrors([ConfigError(_COMMAND, 0, "", error.message)]) from error
    replay = Replay(client, evaluate, options, matches)
    try:
        with _Progress.shown(options) as replay.progress:
            replay.run()
    finally:
        client.close()
    replay.print_result()
    return _INTERRUPTED if replay.interrupted else DONE if replay.complete else NO


def _check_usage(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the headers to match; exit with status 2 if the options are invalid."""
    if not 0 < len(options.queue.encode(errors="surrogateescape")) <= LONGEST_NAME_BYTES or not _is_unicode(
        options.queue
    ):
        options.usage_error(f'--queue: got "{printable(options.queue)}", expected the name of a queue')
    if options.rules is not None and options.admin:
        options.usage_error("--admin is not allowed with --rules, which evaluates files")
    if options.password_file is not None and options.url is None:
        options.usage_error("--password-file contains the password of the user in --url: --url is required")
    matches = []
    for match in options.match:
        name, equals, value = match.partition("=")
        if not equals or not name:
            options.usage_error(f'--match: got "{printable(match)}", expected HEADER=VALUE')
        matches.append((name, value))
    return matches


def _is_unicode(name: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in name)


def _login(options: argparse.Namespace) -> Login:
    """Return address, credentials and virtual host.

    Raises:
        ConfigErrors: the URL, the configuration or a TLS file is invalid.
    """
    if options.url is None:
        settings = read_settings(required_configuration(options.config, _COMMAND))
        control, listen = settings.upstream.control, settings.listen[0]
        host, port = client_host(listen.address.host), listen.address.port
        tls = listener_tls(options, settings.folder / (listen.tls.certificate or "")) if listen.tls else None
        return Login(host, port, control.username, control.password.get_secret_value(), options.vhost or "/", tls)
    try:
        parts = urlsplit(options.url)
        port = parts.port or _PORTS[parts.scheme]
    except (KeyError, ValueError):
        parts, port = urlsplit(""), 0
    if not parts.hostname or parts.query or parts.fragment or "/" in parts.path[1:]:
        raise ConfigErrors([ConfigError("--url", 0, "", _EXPECTED_URL)])
    vhost = unquote(parts.path[1:]) or "/"
    if options.vhost not in (None, vhost) and parts.path[1:]:
        message = f"got virtual host {options.vhost}, but --url has virtual host {vhost}"
        raise ConfigErrors([ConfigError("--vhost", 0, "", message)])
    password = unquote(parts.password or "guest")
    if options.password_file is not None:
        password = read_input(options.password_file).decode(errors="surrogateescape").rstrip("\r\n")
    remember_secret(password)
    tls = listener_tls(options, None) if parts.scheme == "amqps" else None
    return Login(parts.hostname, port, unquote(parts.username or "guest"), password, options.vhost or vhost, tls)


def _evaluator(options: argparse.Namespace, vhost: str) -> Evaluator:
    """Return a function that evaluates a message with the files, or with the active rules of the sidecar."""
    if options.rules is None:
        admin = admin_clients(options, _COMMAND)[0]
        return lambda message: dict(admin.json("/explain", "POST", question(message, vhost)))
    # Imported here, since a run without files does not need the rules engine.
    from oxproxy.rules.explain import ExplainRequest, as_json, explain, read_question

    loaded = load_rules_of(options.rules)

    def evaluate(message: ParkedMessage) -> dict[str, object]:
        asked = read_question(question(message, vhost), "message")
        assert isinstance(asked, ExplainRequest)  # noqa: S101 -- the question has no address
        return as_json(explain(loaded, asked, time.time()))

    return evaluate


class _Signals:
    """Delays Ctrl-C and SIGTERM while a message is in flight, so that they leave no message doubled."""

    def __init__(self) -> None:
        self._holding = self._came = False

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Raise KeyboardInterrupt only at the end; a second signal is not delayed."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._came:
            raise KeyboardInterrupt

    def _handle(self, number: int, stack: FrameType | None) -> None:
        if self._holding and not self._came:
            self._came = True
        else:
            raise KeyboardInterrupt


@dataclass(slots=True)
class _Progress:
    """A progress bar on standard error, if it is a terminal."""

    bar: Progress | None = None
    task: TaskID | None = None

    @classmethod
    @contextlib.contextmanager
    def shown(cls, options: argparse.Namespace) -> Iterator[_Progress]:
        if options.json or not sys.stderr.isatty():
            yield cls()
            return
        # Imported here so that scripts do not wait for rich, which takes 0.2 s to import.
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

        columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            yield cls(bar, bar.add_task("evaluated" if options.dry_run else "replayed", total=None))

    def show(self, done: int, total: int) -> None:
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, total=total)


@dataclass(slots=True)
class Replay:
    """One run. Its attributes are the parts that `run` has prepared, and the counts that the summary prints.

    Attributes:
        left: number of messages to take before the run ends; None before the first message.
        in_flight: description of the message that was published and whose ack is not known to be processed.
        ended: why the run ended early; empty if it did not.
        groups: number of messages for each row of the table.
    """

    client: BlockingClient
    evaluate: Evaluator
    options: argparse.Namespace
    matches: list[tuple[str, str]]
    progress: _Progress = field(default_factory=_Progress)
    left: int | None = None
    taken: int = 0
    replayed: int = 0
    stay: int = 0
    not_matched: int = 0
    in_flight: str = ""
    ended: str = ""
    interrupted: bool = False
    rules: str = ""
    groups: dict[tuple[str, ...], int] = field(default_factory=dict)
    _signals: _Signals = field(default_factory=_Signals)
    _next_publish: float = 0.0
    _warned: bool = False
    #: whether an ack for the message in flight was sent
    _acked: bool = False

    @property
    def complete(self) -> bool:
        return not self.ended and not self.stay

    def run(self) -> None:
        """Take and process messages until none is left, the limit is reached or an error occurs.

        Raises:
            ConfigErrors: the first message could not be taken or evaluated.
        """
        limit: int = self.options.limit or _MOST
        with self._signals.handled():
            try:
                self.client.open_channel(_TAKING)
                self.client.open_channel(_PUBLISHING, confirms=True)
                while (
                    not self.ended
                    and self.left != 0
                    and self.replayed + self.stay < limit
                    and (delivery := self._take()) is not None
                ):
                    self._process(delivery)
                self._finish()
            except KeyboardInterrupt:
                self.ended, self.interrupted = "interrupted", True
                with contextlib.suppress(UpstreamError):
                    self._finish()
            except (UpstreamError, ConfigErrors) as error:
                message = error.message if isinstance(error, UpstreamError) else str(error)
                if not self.replayed + self.stay + self.not_matched and not self.in_flight:
                    if isinstance(error, ConfigErrors):
                        raise
                    raise ConfigErrors([ConfigError(_COMMAND, 0, "", message)]) from error
                self.ended = message

    def _finish(self) -> None:
        """Close the channel, so that the broker has processed the last ack and the other messages are in the queue."""
        self.client.close_channel(_TAKING)
        if self._acked:
            self.in_flight = ""

    def _take(self) -> TakenMessage | None:
        delivery = self.client.get(_TAKING, self.options.queue.encode())
        self.in_flight = ""  # the broker has processed the last ack before this reply
        if delivery is None:
            self.left = 0
            return None
        if self.left is None:
            self.left = delivery.remaining + 1
        self.left -= 1
        self.taken += 1
        return delivery

    def _process(self, delivery: TakenMessage) -> None:
        try:
            message = parked_message(delivery)
        except ProtocolError as error:
            message = ParkedMessage(delivery.exchange, delivery.routing_key, delivery.header)
            result = ReplayPlan("", (), f"its headers are malformed: {error}")
        else:
            if not all(message.has(name, value) for name, value in self.matches):
                self.not_matched += 1
                self._returning(message)
                self._show_progress()
                return
            answer = self.evaluate(message)
            self.rules = str(answer["rules"])
            result = verdict(answer, message, self.options.queue)
        if result.stays is None and not self.options.dry_run:
            self._pace()
            with self._signals.held():
                self._count(message, result, self._publish(message, delivery))
        else:
            self._count(message, result, result.stays)

    def _count(self, message: ParkedMessage, result: ReplayPlan, stays: str | None) -> None:
        if stays is None:
            self.replayed += 1
        else:
            self.stay += 1
        if stays is not None or self.options.dry_run:
            self._returning(message)
        self._show(message, result, stays)
        self._show_progress()

    def _returning(self, message: ParkedMessage) -> None:
        """Warn that a quorum queue counts returns, and end the run before a message reaches the delivery limit."""
        if not message.returns:
            return
        queue, limit = self.options.queue, self.options.delivery_limit
        if not self._warned:
            self._warned = True
            print_errors([printable(_COUNTED.format(queue))])
        if message.returns + _RETURNS_LEFT >= limit:
            self.ended = (
                f"message {self.taken} was returned to quorum queue {queue} {counted(message.returns, 'time')}, and "
                f"the queue drops or dead-letters it after {limit}; raise the delivery limit of the queue, and state "
                "it with --delivery-limit"
            )

    def _pace(self) -> None:
        """Wait until the next publish is permitted by the rate."""
        if self.options.rate is not None:
            time.sleep(max(0.0, self._next_publish - time.monotonic()))
            self._next_publish = max(self._next_publish, time.monotonic()) + 1 / self.options.rate

    def _publish(self, message: ParkedMessage, delivery: TakenMessage) -> str | None:
        """Publish a message and ack it; return why it stays, or None if it was acked."""
        if not self.client.fits(message.header):
            return "its headers exceed the maximum frame size"
        self.in_flight = (
            f"message {self.taken} (exchange {text(message.exchange)}, routing key {text(message.routing_key)})"
        )
        self._acked = False
        try:
            confirm = self.client.publish(
                _PUBLISHING, message.exchange, message.routing_key, message.header, delivery.body
            )
        except ChannelClosed as error:
            if error.channel != _PUBLISHING:
                raise
            self.in_flight = ""
            self.client.open_channel(_PUBLISHING, confirms=True)
            return f"refused: {error.message}"
        if confirm is Confirm.ACKED:
            self.client.ack(_TAKING, delivery.tag)
            self._acked = True
            return None
        self.in_flight = ""
        if confirm is Confirm.RETURNED:
            return "returned: no queue received it"
        return "nacked: at least one of its queues refused it, the others may have received it"

    # -- output --------------------------------------------------------------------------------------------------------

    def _show_progress(self) -> None:
        total = self.taken + (self.left or 0)
        self.progress.show(self.taken, total if self.options.limit is None else min(total, self.options.limit))

    def _show(self, message: ParkedMessage, result: ReplayPlan, stays: str | None) -> None:
        done = _STAYS if stays is not None else _WOULD_BE if self.options.dry_run else _REPLAYED
        if self.options.json:
            line = {
                "number": self.taken,
                "exchange": text(message.exchange),
                "routing_key": text(message.routing_key),
                "message_id": message.message_id,
                "result": done,
                "outcome": result.outcome or None,
                "destinations": list(result.destinations),
                "reason": stays,
            }
            print_line(json_line(line))
            sys.stdout.flush()
            return
        shown = ", ".join(result.destinations) if stays is None else stays
        group = (text(message.exchange), text(message.routing_key), done, shown)
        if group not in self.groups and len(self.groups) >= _ROWS:
            group = ("others", "", "", "")
        self.groups[group] = self.groups.get(group, 0) + 1

    def print_result(self) -> None:
        """Print the table or, as JSON, the summary; errors on standard error."""
        remaining = self.left or 0
        if self.options.json:
            summary = {
                "queue": self.options.queue,
                "dry_run": self.options.dry_run,
                "rules": self.rules or None,
                "replayed": 0 if self.options.dry_run else self.replayed,
                "would_be_replayed": self.replayed if self.options.dry_run else 0,
                "stay": self.stay,
                "not_matched": self.not_matched,
                "not_taken": remaining,
                "in_flight": self.in_flight or None,
                "error": self.ended or None,
            }
            print_line(json_line({"summary": summary}))
        else:
            if self.groups:
                self._print_table()
            done = "would be replayed" if self.options.dry_run else "replayed"
            parts = [f"{counted(self.replayed, 'message')} {done}", f"{self.stay} stay in queue {self.options.queue}"]
            parts += [f"{self.not_matched} not matched"] if self.not_matched else []
            parts += [f"{remaining} not taken"] if remaining else []
            print_line(printable(", ".join(parts)))
        if self.ended:
            print_errors([printable(f"{_COMMAND}: the run ended early: {self.ended}")])
        if self.in_flight:
            print_errors(
                [
                    printable(
                        f"{_COMMAND}: {self.in_flight} was in flight: it may have reached its destinations and be in "
                        f"queue {self.options.queue} as well"
                    )
                ]
            )

    def _print_table(self) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table()
        table.add_column("messages", justify="right")
        for column in _COLUMNS:
            table.add_column(column, overflow="fold")
        for group, count in self.groups.items():
            style = "yellow" if group[2] == _STAYS else None
            table.add_row(str(count), *(Text(printable(cell)) for cell in group), style=style)
        rich_console().print(table)
