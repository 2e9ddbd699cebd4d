"""Divides rules files into units that are reloaded together, so that one tenant's invalid rules do not affect others.

A unit is one virtual host with all its files, unless a file connects several virtual hosts:

- A file whose virtual host changes connects its old and its new virtual host.
- In an invalid file, the virtual host is that of the key `vhost`, if the key precedes the error, and the one of the
  active file. If both are unknown, the file could belong to any virtual host, and connects all of them.

This module runs in a thread and does not connect to a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, TypeAlias

from oxproxy.errors import ConfigErrors
from oxproxy.net.remote.endpoints import RemoteBroker
from oxproxy.rules.loader import LoadedRules, compile_sources, parsed_source, read_content
from oxproxy.rules.ruleset import Rules
from oxproxy.rules.schema import RulesSource, vhosts_of
from oxproxy.yamlfile.document import Faults

#: Brokers named by rules, by virtual host and name.
Brokers: TypeAlias = Mapping[str, Mapping[bytes, RemoteBroker]]
#: Reads the brokers that rules name, or raises ConfigErrors.
BrokersOf: TypeAlias = Callable[[LoadedRules], Brokers]


@dataclass(frozen=True, slots=True)
class ReloadUnit:
    """Virtual hosts whose rules are activated together, or not at all.

    Args:
        vhosts: names of the virtual hosts, including those whose files have been removed.
        loaded: the compiled rules; empty if they are invalid.
        brokers: brokers named by the rules.
        changed: whether the files differ from the active files.
        errors: reasons why the rules can't be activated; empty if they can.
        invalid: whether the files are invalid or the broker has refused the rules; False if the broker is unreachable.
    """

    vhosts: frozenset[str]
    loaded: LoadedRules
    brokers: Brokers = field(default_factory=dict)
    changed: bool = True
    errors: tuple[str, ...] = ()
    invalid: bool = False

    def failed(self, errors: Iterable[str], *, invalid: bool) -> Self:
        return replace(self, errors=tuple(errors), invalid=invalid)


@dataclass(slots=True)
class _File:
    """One rules file.

    Args:
        content: the content, or the error if the file can't be read.
        source: the parsed file; None if it equals the active file.
        vhosts: the virtual hosts that the file connects; None if they are unknown.
    """

    name: str
    content: bytes | Faults
    source: RulesSource | None
    vhosts: frozenset[str] | None

    def parsed(self) -> RulesSource:
        return parsed_source(self.name, self.content) if self.source is None else self.source


def load_units(paths: Iterable[Path], active: LoadedRules, brokers_of: BrokersOf) -> list[ReloadUnit]:
    """Read the rules files, and compile and test those that have changed.

    Args:
        active: the active rules.

    Returns:
        Units that contain each virtual host of the files and of the active rules once.
    """
    in_use = dict(active.contents)
    files = [_read(path, in_use, active.vhost_of) for path in paths]
    groups = _connected([*(file.vhosts for file in files), *map(_only, active.rules.vhosts)])
    return [_unit(group, files, active, brokers_of) for group in groups]


def _only(vhost: str) -> frozenset[str]:
    return frozenset((vhost,))


def _read(path: Path, in_use: Mapping[str, bytes], vhost_of: Mapping[str, str]) -> _File:
    name, content = str(path), read_content(path)
    before = _only(vhost_of[name]) if name in vhost_of else frozenset()
    if name in in_use and content == in_use[name]:
        return _File(name, content, None, before)
    source = parsed_source(name, content)
    return _File(name, content, source, before | (vhosts_of(source) or frozenset()) or None)


def _connected(sets: Sequence[frozenset[str] | None]) -> list[frozenset[str]]:
    """Unite sets that have elements in common; None unites all sets."""
    if None in sets:
        return [frozenset[str]().union(*filter(None, sets))]
    groups: list[frozenset[str]] = []
    for vhosts in filter(None, sets):
        connected = vhosts.union(*(group for group in groups if group & vhosts))
        groups = [*(group for group in groups if not group & vhosts), connected]
    return groups


def _unit(vhosts: frozenset[str], files: Sequence[_File], active: LoadedRules, brokers_of: BrokersOf) -> ReloadUnit:
    own = [file for file in files if file.vhosts is None or file.vhosts & vhosts]
    before = active.of_vhosts(vhosts)
    changed = any(file.source is not None for file in own) or len(own) != len(before.contents)
    unit = ReloadUnit(vhosts, before, changed=changed)
    try:
        if changed:
            loaded = compile_sources([file.parsed() for file in own], Faults())
            failures = loaded.failures()
            unit = replace(unit, loaded=loaded, errors=tuple(map(str, failures)), invalid=bool(failures))
        return replace(unit, brokers=brokers_of(unit.loaded))
    except ConfigErrors as error:
        return ReloadUnit(vhosts, LoadedRules(Rules("")), changed=changed).failed(map(str, error.errors), invalid=True)
