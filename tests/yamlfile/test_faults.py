from __future__ import annotations

import pytest

from proxy.errors import ConfigErrors
from proxy.yamlfile.nodes import ConfigWarning, Faults, Place


def test_every_fault_is_raised_at_once_in_line_order() -> None:
    faults = Faults()
    faults.error(Place("b.yaml", 1), "k", "second file")
    faults.error(Place("a.yaml", 7, 3), "k", "later")
    faults.error(Place("a.yaml", 2), "", "earlier")
    with pytest.raises(ConfigErrors) as raised:
        faults.check()
    assert str(raised.value) == "a.yaml:2: earlier\na.yaml:7:3: k: later\nb.yaml:1: k: second file"


def test_warnings_alone_raise_nothing() -> None:
    faults = Faults()
    faults.warn(Place("a.yaml", 2), "k", "odd")
    faults.warn(Place("a.yaml", 2, 5), "k", "odd")
    faults.check()
    assert [str(warning) for warning in faults.warnings] == ["a.yaml:2: k: warning: odd", "a.yaml:2:5: k: warning: odd"]


def test_a_warning_about_a_whole_file_has_no_line() -> None:
    assert str(ConfigWarning(Place("a.yaml", 0), "", "odd")) == "a.yaml: warning: odd"
