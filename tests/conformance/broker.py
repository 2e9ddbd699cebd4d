"""The checks that RabbitMQ applies to a publish before routing.

Source: RabbitMQ 3.10, rabbit_channel (user id, expiration) and rabbit_basic (delivery mode, CC and BCC), in the same
order.
"""

from __future__ import annotations

import re

from oxproxy.routing.decision import Facts
from oxproxy.routing.error_texts import TYPE_NAMES, decode_text

_USER = "guest"


def refusal(facts: Facts, modes_are_checked: bool = True) -> str | None:
    """Return the error text after ``PRECONDITION_FAILED - ``; None if the broker accepts the message.

    Args:
        facts: the message.
        modes_are_checked: whether the broker accepts only delivery modes 1 and 2; later versions accept all.
    """
    mode = _delivery_mode(facts) if modes_are_checked else None
    return _user_id(facts) or _expiration(facts) or mode or _copies(facts)


def delivery_mode_is_known(mode: object) -> bool:
    """Return whether the broker knows this delivery mode, which is None for a message without one."""
    return mode in (None, 1, 2)


def _text(facts: Facts, name: str) -> str | None:
    value = facts.properties.get(name)
    return decode_text(value) if isinstance(value, bytes) else None


def _user_id(facts: Facts) -> str | None:
    user = _text(facts, "user_id")
    if user in (None, _USER):
        return None
    return f"user_id property set to '{user}' but authenticated user was '{_USER}'"


def _expiration(facts: Facts) -> str | None:
    expiration = _text(facts, "expiration")
    if expiration is None:
        return None
    number = re.match(r"[+-]?[0-9]+", expiration)
    if number is None:
        reason = "no_integer"
    elif rest := expiration[number.end() :]:
        reason = f'{{leftover_string,"{rest}"}}'
    elif int(number[0]) < 0:
        reason = f"{{value_negative,{int(number[0])}}}"
    else:
        return None
    return f"invalid expiration '{expiration}': {reason}"


def _delivery_mode(facts: Facts) -> str | None:
    mode = facts.properties.get("delivery_mode")
    return None if delivery_mode_is_known(mode) else f"invalid message: {{delivery_mode_unknown,{mode!r}}}"


def _copies(facts: Facts) -> str | None:
    first = dict(reversed(facts.headers))
    for name in (b"CC", b"BCC"):
        value = first.get(name)
        if value is not None and value.letter != "A":
            kind = TYPE_NAMES[value.letter]
            return f'invalid message: {{unacceptable_type_in_header,"{name.decode()}",{kind}}}'
    return None
