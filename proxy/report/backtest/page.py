"""Renders the page of a back-test: a self-contained HTML file like the pages of the report."""

from __future__ import annotations

from proxy.report.backtest.judge import EXAMPLES
from proxy.report.backtest.result import BacktestResult, destination_text, examples_of, result_text, summary
from proxy.report.pages import templates
from proxy.report.wording import whole

#: Maximum number of rows of a table on the page.
_ROWS = 500


def render(result: BacktestResult) -> str:
    return _TEMPLATES.get_template("backtest.html").render(
        result=result, rows=_ROWS, subject=f"back-test of {result.candidate}"
    )


_TEMPLATES = templates()
_TEMPLATES.filters |= {
    "whole": whole,
    "summary": summary,
    "result": result_text,
    "destination": destination_text,
    "examples": lambda row: list(examples_of(row))[:EXAMPLES],
}
