"""Sends HTTP requests to the admin ports of running sidecars."""

from __future__ import annotations

import argparse
import http.client
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from oxproxy.cli.console import add_config_argument, configuration, print_errors, read_input, read_settings
from oxproxy.errors import ConfigError, ConfigErrors
from oxproxy.yamlfile.hosts import HostPort
from oxproxy.yamlfile.secret_sources import TOKEN_VARIABLE

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

    from oxproxy.config.settings import Settings

T = TypeVar("T")

_DEFAULT_URL = "http://127.0.0.1:15693"
#: Timeout for a response, in seconds. For some requests, the sidecar compiles rules, which takes one second for ten
#: thousand bindings.
_ANSWER_SECONDS = 60.0
_CHECK_ADDRESS = "check that this is the admin address of a sidecar"
_NO_SIDECAR = f"the response is not {{}}; {_CHECK_ADDRESS}"
#: ``file:line:column``; line and column are optional.
_PLACE = re.compile(r"(.*?)(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?", re.DOTALL)
#: Wildcard addresses, each with the loopback address to use instead. On some systems, clients can't connect to a
#: wildcard address.
_UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 -- nothing is bound
#: Size limit for a token, above those that a sidecar accepts.
_TOKEN_CHARACTERS = 4096
_END_OF_CERTIFICATE = "-----END CERTIFICATE-----"


def add_admin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--admin",
        metavar="URL",
        action="append",
        help="admin address of the running sidecar; repeat for several sidecars; default: from the configuration",
    )
    add_config_argument(parser)
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with a token of admin.tokens; - for standard input; default: the environment variable OXPROXY_TOKEN",
    )
    parser.add_argument(
        "--ca-file",
        metavar="PEM",
        type=Path,
        help="CA certificates for connections over TLS; default: the certificate in the configuration, or the system's "
        "CAs",
    )
    parser.add_argument(
        "--certificate-file",
        metavar="PEM",
        type=Path,
        help="client certificate and its key in one PEM file, for a sidecar that requires one (admin.tls.client_ca)",
    )


def admin_clients(options: argparse.Namespace, command: str) -> list[AdminClient]:
    """Return clients for the sidecars selected by the options.

    The default is the sidecar of the configuration, or the default admin address if there is no configuration.

    Raises:
        ConfigErrors: the configuration is invalid or has no admin address, or a token or certificate is unusable.
    """
    urls: list[str] = options.admin
    certificate = None
    if not urls:
        config = configuration(options.config)
        if config is None:
            urls = [_DEFAULT_URL]
        else:
            settings = read_settings(config, secrets_required=False)
            urls = [admin_url(settings)]
            tls = settings.admin.tls
            certificate = settings.folder / tls.certificate if tls is not None and tls.certificate else None
    token = _token(options.token_file, command)
    secure = any(url.startswith("https:") for url in urls)
    context = _tls_context(options.ca_file, options.certificate_file, certificate) if secure else None
    return [AdminClient(url, command, token, context) for url in urls]


def listener_tls(options: argparse.Namespace, certificate: Path | None) -> ssl.SSLContext:
    """Return a context for an AMQP connection to a sidecar, with the files given in the options; see `_tls_context`.

    Raises:
        ConfigErrors: a file is unusable.
    """
    return _tls_context(options.ca_file, options.certificate_file, certificate)


def _token(name: str | None, command: str) -> str | None:
    """Return the token to present; None if there is none."""
    if name is None:
        source, text = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE, "").strip()
        if not text:
            return None
    else:
        source, text = name, read_input(name).decode("ascii", "replace").strip()
    # A header must not contain other characters. The text is not shown, since it may be a secret.
    if not text or len(text) > _TOKEN_CHARACTERS or not all("!" <= char <= "~" for char in text):
        message = f"{source}: got {len(text)} characters, expected a token of printable ASCII characters without spaces"
        raise ConfigErrors([ConfigError(command, 0, "", message)])
    return text


def _tls_context(ca: Path | None, own: Path | None, certificate: Path | None) -> ssl.SSLContext:
    """Return a context for requests over TLS.

    Args:
        ca: file with trusted CA certificates.
        own: file with our certificate and its key.
        certificate: the certificate in the sidecar's configuration, which is trusted directly unless `ca` is given. Its
            name need not be the address over which a command on the same host connects.

    Raises:
        ConfigErrors: a file is unusable.
    """
    file = ca or certificate
    try:
        if ca is not None or certificate is None:
            context = ssl.create_default_context(cafile=ca)  # without a file, the system's CAs
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            first, end, _ = certificate.read_text("ascii", "replace").partition(_END_OF_CERTIFICATE)
            context.load_verify_locations(cadata=first + end)
        if own is not None:
            file = own
            context.load_cert_chain(own)
    except (OSError, ValueError) as error:
        message = f"can't be used: {getattr(error, 'strerror', None) or error}"
        raise ConfigErrors([ConfigError(str(file), 0, "", message)]) from error
    return context


def ask_sidecars(clients: Iterable[AdminClient], ask: Callable[[AdminClient], T]) -> tuple[dict[AdminClient, T], bool]:
    """Query all sidecars. If a sidecar can't be queried, print the error to standard error.

    Returns:
        The responses, and whether all sidecars have responded.

    Raises:
        ConfigErrors: no sidecar has responded.
    """
    answers: dict[AdminClient, T] = {}
    faults: list[ConfigErrors] = []
    for client in clients:
        try:
            answers[client] = ask(client)
        except ConfigErrors as errors:
            faults.append(errors)
    if not answers:
        raise faults[0]
    print_errors(fault for errors in faults for fault in errors.errors)
    return answers, not faults


def client_host(host: str) -> str:
    """Return the host to connect to for a host to listen on."""
    return _UNSPECIFIED.get(host, host)


def admin_url(settings: Settings) -> str:
    """Return the admin URL of the configuration's sidecar, for requests from the host on which it runs.

    Raises:
        ConfigErrors: the configuration has no admin address.
    """
    address = settings.admin.address
    if address is None:
        raise ConfigErrors([settings.fault("admin.address", "not set, expected the address of a running sidecar")])
    scheme = "http" if settings.admin.tls is None else "https"
    return f"{scheme}://{HostPort(client_host(address.host), address.port)}"


@dataclass(frozen=True, slots=True)
class AdminClient:
    """The admin port of a sidecar.

    Args:
        url: base URL such as http://127.0.0.1:15693.
        command: name of the calling command, for errors.
        token: token to present, if there is one.
        tls: context for an https URL.
    """

    url: str
    command: str
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    def metrics(self) -> list[Sample]:
        """Request the metrics page and return its samples.

        Raises:
            ConfigErrors: the response is not in Prometheus' text format, or `request` fails.
        """
        # Imported here because the import takes 0.1 s.
        from prometheus_client.parser import text_string_to_metric_families

        text = self.request("GET", "/metrics", accept="text/plain")
        try:
            return [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        except ValueError as error:
            raise self._failed(f"{self.url}/metrics: {_NO_SIDECAR.format('a metrics page')}") from error

    def json(self, page: str, method: str = "GET", body: bytes | None = None) -> Any:  # Any: JSON
        """Request a page as JSON.

        Raises:
            ConfigErrors: the response is not JSON, or `request` fails.
        """
        text = self.request(method, page, body)
        try:
            return loads(text)
        except ValueError as error:
            raise self._failed(f"{self.url}{page}: {_NO_SIDECAR.format('JSON')}") from error

    def request(self, method: str, page: str, body: bytes | None = None, accept: str = "application/json") -> str:
        """Request a page and return its text.

        Raises:
            ConfigErrors: the sidecar is unreachable or refuses the request. Errors that the sidecar reports for files
                include their positions.
        """
        address = self.url.rstrip("/") + page
        if "@" in self.url:  # the URL may contain a password, which must not be printed
            raise self._failed(f"got a user name in the URL, expected a URL such as {_DEFAULT_URL}")
        if not address.startswith(("http://", "https://")):
            raise self._failed(f"got {self.url}, expected a URL such as {_DEFAULT_URL}")
        try:
            request = urllib.request.Request(address, body, {"Accept": accept}, method=method)  # noqa: S310 -- checked above
            if self.token is not None:  # not sent to another server if the response is a redirect
                request.add_unredirected_header("Authorization", f"Bearer {self.token}")
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS, context=self.tls) as answer:  # noqa: S310
                text: str = answer.read().decode()
        except urllib.error.HTTPError as error:
            raise self._refused(address, error) from error
        except http.client.InvalidURL as error:
            raise self._failed(f"got {self.url}, expected a URL such as {_DEFAULT_URL}") from error
        except http.client.HTTPException as error:
            raise self._failed(f"{address}: {_NO_SIDECAR.format('valid HTTP or is incomplete')}") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise self._failed(f"{address}: {getattr(reason, 'strerror', None) or reason}") from error
        return text

    def _refused(self, address: str, refusal: urllib.error.HTTPError) -> ConfigErrors:
        text = refusal.read().decode(errors="replace").strip()
        if refusal.code == HTTPStatus.NOT_FOUND or refusal.headers.get_content_type() == "text/html" or not text:
            return self._failed(f"{address}: {refusal.code} {refusal.reason}; {_CHECK_ADDRESS}")
        if refusal.code != HTTPStatus.UNPROCESSABLE_ENTITY:
            advice = (
                f"; use --token-file or {TOKEN_VARIABLE}"
                if refusal.code == HTTPStatus.UNAUTHORIZED and self.token is None
                else ""
            )
            return self._failed(f"{address}: {refusal.code} {text}{advice}")
        return ConfigErrors([_fault(str(error)) for error in loads(text)["errors"]])

    def _failed(self, text: str) -> ConfigErrors:
        return ConfigErrors([ConfigError(self.command, 0, "", text)])


def _fault(text: str) -> ConfigError:
    """Parse an error reported by the sidecar, including its position in the file."""
    place, _, rest = text.partition(": ")
    match = _PLACE.fullmatch(place)
    assert match is not None  # noqa: S101 -- matches any text
    file, line, column = match.groups(default="0")
    return ConfigError(file, int(line), "", rest, int(column))
