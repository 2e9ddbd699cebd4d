"""Loads rules files: reads, checks and compiles them as one set, or raises an exception with all errors.

This module does not connect to a broker. `LoadedRules` contains everything that routing needs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

from oxproxy.addressing.table import AddressTable
from oxproxy.addressing.targets import AddressBook
from oxproxy.garbage import without_collection
from oxproxy.routing.router import Router
from oxproxy.rules.compiler import compile_exchange
from oxproxy.rules.file_tests import RulesTest, TestFailure, check_tests
from oxproxy.rules.lint.addresses import check_addresses
from oxproxy.rules.lint.files import check_vhost
from oxproxy.rules.ruleset import QueueRule, Rules, VhostRules
from oxproxy.rules.schema import (
    MAX_FILE_BYTES,
    PackedPlaces,
    ParsedFile,
    RulesSource,
    read_rules_file,
    read_source,
    read_tests_file,
    release_parsed,
)
from oxproxy.yamlfile.document import ConfigWarning, Faults, Place, release_tree


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """Valid, compiled rules.

    Args:
        routers: the compiled rules by virtual host.
        books: the address tables by virtual host; empty tables are omitted.
        contents: name and bytes of each file. Excluded from the repr, since addresses may contain passwords.
        vhost_of: the virtual host of each file, by name.
    """

    rules: Rules
    routers: Mapping[str, Router] = field(default_factory=dict)
    tests: tuple[RulesTest, ...] = ()
    warnings: tuple[ConfigWarning, ...] = ()
    books: Mapping[str, AddressBook] = field(default_factory=dict)
    contents: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    vhost_of: Mapping[str, str] = field(default_factory=dict)

    def of_vhosts(self, vhosts: Container[str]) -> LoadedRules:
        """Return the rules of some virtual hosts."""
        vhost_of = {name: vhost for name, vhost in self.vhost_of.items() if vhost in vhosts}
        contents = tuple((name, data) for name, data in self.contents if name in vhost_of)
        rules = {name: vhost for name, vhost in self.rules.vhosts.items() if name in vhosts}
        return LoadedRules(
            Rules(rules_version(contents), rules),
            {name: self.routers[name] for name in rules},
            tuple(test for test in self.tests if test.vhost in vhosts),
            tuple(warning for warning in self.warnings if warning.place.source in vhost_of),
            {name: book for name, book in self.books.items() if name in vhosts},
            contents,
            vhost_of,
        )

    def failures(self) -> list[TestFailure]:
        """Run the tests in the files; return the failures."""
        return check_tests(self.tests, self.rules, self.routers, self.books)


#: Receives the parsed files, with positions, and the rules compiled from them. The parsed files are released after the
#: call.
CompiledHook: TypeAlias = Callable[[Sequence[ParsedFile], LoadedRules], None]
#: Reads a test file.
TestsReader: TypeAlias = Callable[[Path], bytes]


def load_rules(paths: Iterable[Path]) -> LoadedRules:
    """Read, check and compile rules files as one set, in the given order.

    Args:
        paths: the files; `rules_files` lists the files of a configuration.

    Returns:
        The rules, whose tests have not been run (see `LoadedRules.failures`).

    Raises:
        ConfigErrors: all errors in all files.
    """
    return compile_sources([parsed_source(str(path), read_content(path)) for path in paths], Faults())


def read_content(path: Path) -> bytes | Faults:
    """Return the content of a rules file, or an error if it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)  # `read_source` reports a larger file
    except OSError as error:
        faults = Faults()
        faults.error(Place(str(path), 0), "", f"can't be read: {error.strerror or error}")
        return faults


def parsed_source(name: str, content: bytes | Faults) -> RulesSource:
    """Parse the result of `read_content`."""
    if isinstance(content, Faults):
        return RulesSource(name, b"", None, PackedPlaces(name), content)
    return read_source(name, content)


def compile_rules(
    contents: Sequence[tuple[str, bytes]], faults: Faults | None = None, on_compiled: CompiledHook | None = None
) -> LoadedRules:
    """Compile rules files from their names and contents; see `load_rules`."""
    return compile_sources([read_source(name, data) for name, data in contents], faults or Faults(), on_compiled)


def compile_sources(
    sources: Sequence[RulesSource],
    faults: Faults,
    on_compiled: CompiledHook | None = None,
    read_tests: TestsReader | None = None,
) -> LoadedRules:
    """Compile parsed rules files and release the parsed content; see `load_rules`.

    Without `read_tests`, separate test files are skipped, since a running sidecar does not need them.
    """
    with without_collection():
        files: list[ParsedFile] = []
        try:
            for source in sources:
                _read(source, files, faults)
            loaded = _compile(sources, files, faults, read_tests)
            if on_compiled is not None:
                on_compiled(files, loaded)
        finally:
            # Thousands of objects are freed one by one, so that other threads can run in between.
            for file in files:
                release_parsed(file)
            for source in sources:
                if source.root is not None:
                    release_tree(source.root)
        return loaded


def joined_rules(parts: Sequence[LoadedRules]) -> LoadedRules:
    """Return the rules of all parts, which must be for different virtual hosts, with the files in loading order."""
    contents = tuple(sorted((file for part in parts for file in part.contents), key=lambda file: Path(file[0])))
    return LoadedRules(
        Rules(rules_version(contents), {name: rules for part in parts for name, rules in part.rules.vhosts.items()}),
        {name: router for part in parts for name, router in part.routers.items()},
        tuple(test for part in parts for test in part.tests),
        tuple(warning for part in parts for warning in part.warnings),
        {name: book for part in parts for name, book in part.books.items()},
        contents,
        {name: vhost for part in parts for name, vhost in part.vhost_of.items()},
    )


def _read(source: RulesSource, files: list[ParsedFile], faults: Faults) -> None:
    faults.extend(source.faults)
    if source.root is not None:
        files.append(read_rules_file(source.root, source, faults))
    elif not source.faults.errors:
        # A file that was truncated by mistake must not disable the active rules.
        faults.error(Place(source.name, 1, 1), "", "the file is empty, expected a mapping with keys such as exchanges")


def _compile(
    sources: Sequence[RulesSource], files: Sequence[ParsedFile], faults: Faults, read_tests: TestsReader | None
) -> LoadedRules:
    by_vhost: dict[str, list[ParsedFile]] = {}
    for file in files:
        by_vhost.setdefault(file.vhost, []).append(file)
    vhosts, routers = {}, {}
    books = {}
    for name, parsed_files in by_vhost.items():
        check_vhost(parsed_files, faults)
        vhosts[name], routers[name] = _compile_vhost(name, parsed_files, faults)
        table = AddressTable(vhosts[name].addresses)
        if table:
            brokers = [broker.name for broker in vhosts[name].brokers]
            books[name] = AddressBook(table, brokers)
            fields = [parsed.fields for file in parsed_files for parsed in file.addresses]
            check_addresses(books[name], brokers, fields)
    tests = [test for file in files for test in file.tests]
    if read_tests is not None:
        tests += [test for file in files for test in _tests_in_other_file(file, read_tests, faults)]
    faults.check()
    contents = tuple((source.name, source.data) for source in sources)
    rules = Rules(rules_version(contents), vhosts)
    vhost_of = {file.source: file.vhost for file in files}
    return LoadedRules(rules, routers, tuple(tests), tuple(faults.warnings), books, contents, vhost_of)


def _tests_in_other_file(file: ParsedFile, read: TestsReader, faults: Faults) -> list[RulesTest]:
    if file.tests_file is None:
        return []
    path = file.tests_file.path
    try:
        source = read_source(str(path), read(path))
    except OSError as error:
        faults.error(file.tests_file.named_at, "tests", f"{path} can't be read: {error.strerror or error}")
        return []
    return read_tests_file(source, file.vhost, faults)


def _compile_vhost(name: str, files: Sequence[ParsedFile], faults: Faults) -> tuple[VhostRules, Router]:
    queues: dict[bytes, QueueRule] = {}
    for file in files:
        for queue in file.queues:
            queues.setdefault(queue.rule.name, queue.rule)
    parsed_exchanges = [exchange for file in files for exchange in file.exchanges]
    router = Router([compile_exchange(exchange, faults) for exchange in parsed_exchanges])
    exchanges = tuple(exchange.rule for exchange in parsed_exchanges)
    addresses = [parsed for file in files for parsed in file.addresses]
    brokers = tuple(broker for file in files for broker in file.brokers)
    rules = VhostRules(
        name,
        tuple(queues.values()),
        exchanges,
        tuple(parsed.rule for parsed in addresses),
        brokers,
        tuple(parsed.places for parsed in addresses),
    )
    return rules, router


def rules_version(contents: Iterable[tuple[str, bytes]]) -> str:
    """Hash the files' contents, not their paths, so that sidecars with the same rules report the same version."""
    digest = blake2b(digest_size=6)
    for _, data in contents:
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()
