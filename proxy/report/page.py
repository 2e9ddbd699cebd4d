"""What do people see? One HTML file that needs nothing else: no network, no script, no other file.

A browser is told so as well: the page's policy forbids it to load anything. Everything from the log is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from html import escape

from proxy.report import charts, wording
from proxy.report.charts import Series, Span, Upright
from proxy.report.figures import Figures, Stop, Timed
from proxy.report.style import STYLE

#: Order and colour of outcomes: what went well at the bottom, what did not on top of it.
OUTCOMES = ("routed", "passed", "translated", "unrouted", "filtered", "rejected")
_OTHER = len(OUTCOMES)
_FIRST_TROUBLE = OUTCOMES.index("unrouted")
_PERCENTILES = (("p50", 0), ("p95", 3), ("p99", 5))
_LATENCIES = {"decide": "Decision", "confirm": "Confirm by the broker"}
_BARS = 15


def render(figures: Figures) -> str:
    """Give the page as text."""
    body = "".join(_sections(figures)) if figures.publishes else _nothing(figures)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>oxproxy report {escape(figures.range)}</title><style>{STYLE}</style></head><body>"
        f"<header><h1>Message routing{escape(f', {figures.range}' if figures.days else '')}</h1>"
        f"<p>From the audit log of oxproxy; made {wording.moment(figures.made)} UTC from "
        f"{wording.several(figures.segments, 'segment')}. All times are UTC.</p></header>"
        f"<main>{body}</main></body></html>\n"
    )


def _nothing(figures: Figures) -> str:
    aside = f"<p>{escape(_aside(figures))}</p>" if figures.rejected else ""
    aside += _notices(figures)
    days = f" for {figures.range}" if figures.days else ""
    return (
        '<section class="empty"><h2>Nothing was published</h2>'
        f"<p>The audit log has no publish{escape(days)}. That may be all right. If not:</p><ul>"
        "<li>A segment shows five minutes after its first line, or when the sidecar ends: what happened just now is "
        "not in it yet.</li>"
        "<li>The input folder is the one that <code>audit.directory</code> names, with folders "
        "<code>date=…/hour=…</code> in it.</li>"
        "<li>With <code>audit.scope: ruled</code> only publishes that a rule touches leave a line.</li>"
        f"<li>Days are days in UTC.</li></ul>{aside}</section>"
    )


def _sections(figures: Figures) -> Iterator[str]:
    yield _tiles(figures)
    yield _notices(figures)
    yield _section("traffic", "Traffic", "How much was published, and what became of it.", _traffic(figures))
    yield _section("destinations", "Destinations", "Where messages were sent.", _destinations(figures))
    yield _section("bindings", "Bindings", "Which bindings matched, and which never did.", _bindings(figures))
    yield _section(
        "unroutable",
        "Unroutable",
        "Publishes that reached nobody: without a destination, or returned by the broker. Words of routing keys that "
        "look like identities are shown as *.",
        _unroutable(figures),
    )
    yield _section("latency", "Latency", "Measured on samples; the axis is logarithmic.", _latency(figures))
    yield _section("producers", "Producers", "Who publishes, how much, how large, how fast.", _producers(figures))
    yield _section(
        "anomalies",
        "Anomalies",
        "Hours unlike the same hour of the days before, gaps in the log, message ids that came again.",
        _anomalies(figures),
    )
    yield _section(
        "trace",
        "Trace",
        "Messages that came through several sidecars, from a sample of all messages; "
        "<code>oxproxy trace MESSAGE_ID --input DIR</code> shows every record of any message.",
        _trace(figures),
    )


def _section(name: str, title: str, about: str, parts: Iterable[str]) -> str:
    return f'<section id="{name}"><h2>{title}</h2><p class="about">{about}</p>{"".join(parts)}</section>'


def _tiles(figures: Figures) -> str:
    outcomes, returned = figures.outcomes, figures.results.get("returned", 0)
    nobody = outcomes.get("unrouted", 0)
    tiles = [
        ("publishes", wording.short(figures.publishes), wording.whole(figures.publishes)),
        ("bytes of bodies", wording.short(figures.bytes, "B"), f"{wording.whole(figures.bytes)} bytes"),
        ("without destination", wording.share(nobody, figures.publishes), f"{wording.whole(nobody)} publishes"),
        ("returned", wording.short(returned), "by the broker"),
        ("anomalies", _count(figures, "anomalies", len(figures.anomalies)), "listed below"),
        ("sidecars", _count(figures, "proxies", len(figures.proxies)), f"rules {', '.join(figures.rules) or 'none'}"),
    ]
    if figures.rejected:
        tiles.append(("lines kept aside", wording.whole(sum(figures.rejected.values())), _aside(figures)))
    shown = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{name}</span><small>{escape(detail)}</small></div>'
        for name, value, detail in tiles
    )
    return f'<div class="tiles">{shown}</div>'


def _notices(figures: Figures) -> str:
    """What the numbers should be read with."""
    notices = []
    if figures.late:
        notices.append(
            f"{wording.several(figures.late, 'record')} in the folder of another day count on their own day."
        )
    if figures.unmatched:
        notices.append(f"{wording.several(figures.unmatched, 'return')} of the broker without a publish in the log.")
    if figures.duplicates:
        names = ", ".join(figures.duplicates[:_BARS])
        more = " and others" if len(figures.duplicates) > _BARS else ""
        notices.append(f"Segments with the same content as another one, counted once: {names}{more}.")
    return "".join(f'<p class="about">{escape(notice)}</p>' for notice in notices)


def _count(figures: Figures, name: str, shown: int) -> str:
    return f"more than {shown}" if figures.found.get(name, 0) > shown else wording.whole(shown)


def _aside(figures: Figures) -> str:
    reasons = ", ".join(f"{wording.whole(count)} {why}" for why, count in figures.rejected.items())
    return f"{reasons}: in _rejected"


def _traffic(figures: Figures) -> Iterator[str]:
    step = timedelta(minutes=figures.step_minutes)
    span = Span(figures.steps[0].begin, figures.steps[-1].begin + step)
    every = wording.minutes(figures.step_minutes)
    seen = figures.outcomes
    order = [name for name in OUTCOMES if name in seen] + sorted(seen.keys() - set(OUTCOMES))
    stack = [
        Series(
            f"{name} {wording.share(seen[name], figures.publishes)}",
            {at.begin: at.outcomes.get(name, 0) for at in figures.steps},
            OUTCOMES.index(name) if name in OUTCOMES else _OTHER,
        )
        for name in order
    ]
    most = max(sum(at.outcomes.values()) for at in figures.steps)
    yield f"<h3>Publishes per {every}, by outcome</h3>"
    yield charts.columns(
        span, step, stack, Upright(f"publishes per {every}", wording.short, most), "Publishes over time"
    )
    trouble = [series for series in stack if series.colour >= _FIRST_TROUBLE]
    if trouble:
        worst = max(sum(series.values[at.begin] for series in trouble) for at in figures.steps)
        upright = Upright(f"publishes per {every}", wording.short, worst)
        yield "<h3>The part of it that went to no destination</h3>"
        yield charts.columns(span, step, trouble, upright, "Publishes without destination over time")
    size = Series("bytes of bodies", {at.begin: at.bytes for at in figures.steps}, 1)
    largest = max(at.bytes for at in figures.steps)
    upright = Upright(f"bytes per {every}", lambda value: wording.short(value, "B"), largest)
    yield f"<h3>Bytes per {every}</h3>{charts.columns(span, step, [size], upright, 'Bytes over time')}"
    yield '<div class="pair">'
    for title, named in (("Exchanges", figures.exchanges), ("Sidecars", figures.proxies)):
        items = [(item.name, float(item.publishes)) for item in named[:_BARS]]
        chart = charts.bars(items, wording.whole, f"{title} by publishes", width=charts.WIDTH // 2)
        yield f"<div><h3>{title}, publishes</h3>{chart}</div>"
    yield "</div>"


def _destinations(figures: Figures) -> Iterator[str]:
    if not figures.destinations:
        yield "<p>No publish had a destination.</p>"
        return
    items = [(f"{sent.destination} in {sent.vhost}", float(sent.publishes)) for sent in figures.destinations[:_BARS]]
    yield f"<h3>Publishes by destination</h3>{charts.bars(items, wording.whole, 'Destinations by publishes', 1)}"
    rows = [
        (sent.destination, sent.kind, sent.vhost, sent.publishes, sent.first_seen, sent.last_seen)
        for sent in figures.destinations
    ]
    yield _table(("destination", "kind", "virtual host", "publishes", "first", "last"), rows)
    yield _cut(figures, "destinations", len(rows))


def _bindings(figures: Figures) -> Iterator[str]:
    if figures.hot:
        items = [
            (f"{hot.binding} ({wording.exchange(hot.exchange)} in {hot.vhost})", float(hot.matches))
            for hot in figures.hot[:_BARS]
        ]
        yield f"<h3>Hot: bindings with most matches</h3>{charts.bars(items, wording.whole, 'Bindings by matches', 2)}"
        yield _cut(figures, "hot", len(items))
    else:
        yield "<p>No binding matched.</p>"
    yield "<h3>Dead: in the rules files, never matched</h3>"
    if not figures.bindings_known:
        yield "<p>Not known: this run had no rules files (<code>--rules FILE</code>).</p>"
    elif not figures.dead:
        yield "<p>None: each binding of the rules files matched at least once.</p>"
    else:
        yield _table(
            ("binding", "exchange", "virtual host"),
            [(dead.binding, wording.exchange(dead.exchange), dead.vhost) for dead in figures.dead],
        )
        yield _cut(figures, "dead", len(figures.dead))


def _unroutable(figures: Figures) -> Iterator[str]:
    if not figures.unroutable:
        yield "<p>None: every publish had a destination, and the broker returned nothing.</p>"
        return
    rows = [
        (
            wording.exchange(lost.exchange),
            lost.rk_pattern,
            lost.vhost,
            lost.publishes,
            lost.returned,
            lost.example_rk,
            lost.example_message_id or "",
        )
        for lost in figures.unroutable
    ]
    heads = ("exchange", "routing key", "virtual host", "publishes", "returned", "first such key", "its message id")
    yield _table(heads, rows)
    yield _cut(figures, "unroutable", len(rows))


def _latency(figures: Figures) -> Iterator[str]:
    for what, title in _LATENCIES.items():
        hours = [hour for hour in figures.latency if hour.what == what]
        samples = sum(hour.samples for hour in hours)
        yield f"<h3>{title}</h3>"
        yield _times(hours, title) if hours else "<p>No samples.</p>"
        if hours:
            yield f'<p class="about">{wording.whole(samples)} samples.</p>'


def _times(hours: Sequence[Timed], title: str) -> str:
    half = timedelta(minutes=30)
    span = Span(hours[0].begin, hours[-1].begin + 2 * half)
    series = [
        Series(name, {hour.begin + half: getattr(hour, f"{name}_us") for hour in hours}, colour)
        for name, colour in _PERCENTILES
    ]
    values = [value for one in series for value in one.values.values()]
    positive = [value for value in values if value > 0] or [1.0]
    upright = Upright("time", wording.micros, max(positive), min(positive))
    return charts.lines(span, series, upright, f"{title}: percentiles per hour")


def _producers(figures: Figures) -> Iterator[str]:
    rows = [
        (
            *(sender.user, sender.conn, sender.proxy, sender.publishes),
            wording.short(sender.bytes, "B"),
            wording.short(sender.p95_size, "B"),
            sender.peak_per_second,
        )
        for sender in figures.producers
    ]
    yield _table(
        ("user", "connection", "sidecar", "publishes", "bytes", "95 % of sizes up to", "peak per second"), rows
    )
    yield _cut(figures, "producers", len(rows))
    sizes = [
        (f"up to {wording.short(bound, 'B')}" if bound is not None else "larger", float(count))
        for bound, count in figures.sizes
    ]
    yield f"<h3>Sizes of bodies, publishes</h3>{charts.bars(sizes, wording.whole, 'Publishes by size of body', 1)}"


def _anomalies(figures: Figures) -> Iterator[str]:
    if not figures.anomalies:
        yield "<p>None found.</p>"
        return
    rows = [
        (
            *(wording.hour(finding.begin), finding.what, finding.subject, finding.seen, finding.expected),
            wording.short(finding.score),
            finding.example or "",
        )
        for finding in figures.anomalies
    ]
    yield _table(("hour", "what", "where", "seen", "expected", "score", "detail"), rows)
    yield _cut(figures, "anomalies", len(rows))


def _trace(figures: Figures) -> Iterator[str]:
    if not figures.ways:
        yield "<p>No message id of the sample was seen at more than one sidecar.</p>"
    for message_id, stops in figures.ways:
        way = "".join(map(_stop, stops))
        name = f"<code>{escape(message_id)}</code>, {len(stops)} times"
        yield f"<details><summary>{name}</summary><ol>{way}</ol></details>"


def _stop(stop: Stop) -> str:
    to = ", ".join(stop.queues) or "no queue"
    via = f"{wording.exchange(stop.exchange)}, key {stop.rk}"
    return f"<li>{stop.ts:%H:%M:%S.%f} {escape(stop.proxy)}: {escape(via)}: {escape(stop.outcome)}, {escape(to)}</li>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lists = [list(row) for row in rows]
    numeric = [all(isinstance(row[place], int | float) for row in lists) for place in range(len(heads))]
    marked = zip(heads, numeric, strict=True)
    top = "".join(
        f'<th class="n">{escape(head)}</th>' if right else f"<th>{escape(head)}</th>" for head, right in marked
    )
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in lists)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return f'<td class="n">{wording.whole(value)}</td>'
    text = value if isinstance(value, str) else wording.moment(value)  # type: ignore[arg-type]
    return f"<td>{escape(text)}</td>"


def _cut(figures: Figures, name: str, shown: int) -> str:
    return '<p class="about">The table has more.</p>' if figures.found.get(name, 0) > shown else ""
