"""Fixtures for the tests of the running process."""

from __future__ import annotations

from tests.served import connect as connect
from tests.served import outside as outside
from tests.served import serve as serve
from tests.served import tap as tap
