"""Words that users do not read here."""

from __future__ import annotations

from deploy.wording import findings


def test_what_users_read_has_none_of_the_words_that_are_left_out() -> None:
    assert findings() == []
