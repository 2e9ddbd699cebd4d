"""Loads rules files: reads, checks and compiles them as one set, or raises every fault in them.

It reads files and asks no broker. A `LoadedRules` has all that is needed to route.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

from proxy.addressing.targets import AddressBook
from proxy.routing.router import Router
from proxy.rules.addresses import address_book
from proxy.rules.brokers import check_brokers
from proxy.rules.compiler import compile_exchange
from proxy.rules.file_tests import RulesTest, TestFailure, check_tests
from proxy.rules.lint.files import check_vhost
from proxy.rules.ruleset import ExchangeRule, QueueRule, Rules, VhostRules
from proxy.rules.schema import ExchangeDraft, FileDraft, dissolve_drafts, read_rules_file
from proxy.yamlfile.document import read_document
from proxy.yamlfile.nodes import ConfigWarning, Faults, Node, Place, dissolve


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """Rules that can be used.

    Args:
        rules: what the files say.
        routers: the same compiled, by virtual host.
        tests: the tests that the files carry.
        warnings: what the operator should know.
        books: the address tables, by virtual host; one without rules has none.
    """

    rules: Rules
    routers: Mapping[str, Router] = field(default_factory=dict)
    tests: tuple[RulesTest, ...] = ()
    warnings: tuple[ConfigWarning, ...] = ()
    books: Mapping[str, AddressBook] = field(default_factory=dict)

    def failures(self) -> list[TestFailure]:
        """Run the tests that the files carry; give those that do not hold."""
        return check_tests(self.tests, self.rules, self.routers, self.books)


#: Looks at drafts and at what was made of them.
Examination: TypeAlias = Callable[[Sequence[FileDraft], LoadedRules], None]


def load_rules(paths: Iterable[Path], examine: Examination | None = None) -> LoadedRules:
    """Read, check and compile rules files as one set, in the given order.

    Args:
        paths: the files; `rules_files` gives those of a configuration.
        examine: gets the drafts, which know their places, with the rules made of them; they end with the call.

    Returns:
        The rules. Their tests have not been run: ask `failures` for them.

    Raises:
        ConfigErrors: every fault found in any of the files.
    """
    faults = Faults()
    contents = []
    for path in paths:
        try:
            contents.append((str(path), path.read_bytes()))
        except OSError as error:
            faults.error(Place(str(path), 0), "", f"can't be read: {error.strerror or error}")
    return compile_rules(contents, faults, examine)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Keep the garbage collector out: it would walk again and again through a tree that only grows.

    Half of the time of loading ten thousand bindings went there.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def compile_rules(
    contents: Sequence[tuple[str, bytes]], faults: Faults | None = None, examine: Examination | None = None
) -> LoadedRules:
    """Compile rules files from their names and contents; see `load_rules`."""
    faults = faults or Faults()
    with _without_collection():
        files: list[FileDraft] = []
        roots: list[Node] = []
        try:
            _read(contents, files, roots, faults)
            loaded = _compile(contents, files, faults)
            if examine is not None:
                examine(files, loaded)
        finally:
            # Thousands of objects that end one by one leave other threads their turn; all at once they don't.
            for file in files:
                dissolve_drafts(file)
            for root in roots:
                dissolve(root)
        return loaded


def _read(contents: Sequence[tuple[str, bytes]], files: list[FileDraft], roots: list[Node], faults: Faults) -> None:
    for source, data in contents:
        noted = len(faults.errors)
        root = read_document(data, source, faults)
        if root is not None:
            roots.append(root)
            files.append(read_rules_file(root, source, faults))
        elif len(faults.errors) == noted:
            faults.warn(Place(source, 0), "", "the file says nothing")


def _compile(contents: Sequence[tuple[str, bytes]], files: Sequence[FileDraft], faults: Faults) -> LoadedRules:
    by_vhost: dict[str, list[FileDraft]] = {}
    for file in files:
        by_vhost.setdefault(file.vhost, []).append(file)
    vhosts, routers = {}, {}
    books = {}
    for name, drafts in by_vhost.items():
        check_vhost(drafts, faults)
        vhosts[name], routers[name] = _compile_vhost(name, drafts, faults)
        book = address_book([each for file in drafts for each in file.addresses], vhosts[name].brokers, faults)
        if book.table:
            books[name] = book
    faults.check()
    tests = tuple(test for file in files for test in file.tests)
    rules = Rules(rules_version(contents), vhosts)
    return LoadedRules(rules, routers, tests, tuple(faults.warnings), books)


def _compile_vhost(name: str, files: Sequence[FileDraft], faults: Faults) -> tuple[VhostRules, Router]:
    queues: dict[bytes, QueueRule] = {}
    for file in files:
        for queue in file.queues:
            queues.setdefault(queue.rule.name, queue.rule)
    drafts = [draft for file in files for draft in file.exchanges]
    router = Router([compile_exchange(draft, faults) for draft in drafts])
    exchanges = tuple(_rule(draft) for draft in drafts)
    addresses = [draft for file in files for draft in file.addresses]
    brokers = tuple(broker for file in files for broker in file.brokers)
    check_brokers(brokers, faults)
    rules = VhostRules(
        name,
        tuple(queues.values()),
        exchanges,
        tuple(draft.rule for draft in addresses),
        brokers,
        tuple(draft.places for draft in addresses),
    )
    return rules, router


def _rule(draft: ExchangeDraft) -> ExchangeRule:
    return ExchangeRule(
        name=draft.name,
        type=draft.type,
        delivery=draft.delivery,
        carrier=draft.carrier,
        unmatched_pass=draft.unmatched_pass,
        arguments=draft.arguments,
        alternate=draft.alternate,
        bindings=tuple(binding.binding for binding in draft.bindings),
        local_time=draft.local_time,
    )


def rules_version(contents: Iterable[tuple[str, bytes]]) -> str:
    """Hash what the files say, not where they lie: two sidecars with the same rules name the same version."""
    digest = blake2b(digest_size=6)
    for _, data in contents:
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
