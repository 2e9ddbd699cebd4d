from __future__ import annotations

import pytest

from proxy.addressing.targets import Target
from tests.bench import lookups
from tests.bench.cases import ADDRESS_RULES


@pytest.mark.parametrize("kind", lookups.KINDS)
def test_each_publish_is_new_and_only_the_last_rule_fits(kind: str) -> None:
    table, wanted = lookups.book(kind), lookups.publishes(kind)
    assert len(set(wanted)) == lookups.LOOKUPS
    found = table.look_up(*wanted[0])
    assert isinstance(found, Target)
    assert (found.rule, found.remote) == (ADDRESS_RULES - 1, None)
