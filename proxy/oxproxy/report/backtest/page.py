"""Renders the page of a back-test: a self-contained HTML file like the pages of the report."""

from __future__ import annotations

from oxproxy.report.backtest.judge import EXAMPLES
from oxproxy.report.backtest.result import BacktestResult, destination_text, examples_of, result_text, summary
from oxproxy.report.pages import templates
from oxproxy.report.wording import whole

#: Maximum number of rows of a table on the page.
_ROWS = 500


def render(result: BacktestResult, report: str = "") -> str:
    """Return the page.

    Args:
        report: link to the page of the report; empty if there is none.
    """
    return _TEMPLATES.get_template("backtest.html").render(
        result=result, report=report, rows=_ROWS, subject=f"back-test of {result.candidate}"
    )


_TEMPLATES = templates()
_TEMPLATES.filters |= {
    "whole": whole,
    "summary": summary,
    "result": result_text,
    "destination": destination_text,
    "examples": lambda row: list(examples_of(row))[:EXAMPLES],
}
