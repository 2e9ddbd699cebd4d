// Overview: publish rates, connections and problems.

import { at, badge, count, duration, element, facts, latency, name, rate, svg, table, time, whole } from './dom.js'
import { state } from './feed.js'
import { FINDINGS, problems } from './problems.js'

export const topics = ['status', 'traffic']
const STACKED = ['routed', 'passed', 'translated', 'filtered', 'unrouted', 'rejected']
const HEIGHT = 220
const MOST_ALERTS = 20
const MARGIN = { left: 52, right: 8, top: 10, bottom: 22 }
const SECONDS = 900
let cursor = null
let span = SECONDS

export function show(topic) {
  if (state.traffic && topic !== 'status') {
    chart()
    traffic()
  }
  if (state.status && topic !== 'traffic') status()
  if (state.status && state.traffic) tiles()
}

function tiles() {
  const { per_second: now, producers, channels, confirm_seconds: confirms } = state.traffic
  const total = STACKED.reduce((sum, outcome) => sum + now[outcome], 0)
  const failed = now.unrouted + now.rejected + now.nacked
  const { status } = state
  facts(at('tiles'), [
    worst(status),
    ['Publishes', `${rate(total)}/s`, '', `${rate(now.routed)}/s routed`],
    ['Not delivered', `${rate(failed)}/s`, failed ? 'warn' : '',
      `unroutable ${rate(now.unrouted)}, rejected ${rate(now.rejected)}, nacked ${rate(now.nacked)}`],
    ['Returned', `${rate(now.returned)}/s`, now.returned ? 'warn' : '', 'mandatory messages returned by RabbitMQ'],
    ['Producers', whole(producers), '', count(channels, 'channel')],
    ['Confirm latency', latency(confirms.p50), '', `p99 ${latency(confirms.p99)}, last minute`],
  ])
}

function status() {
  const { status } = state
  const reload = status.last_reload
  const notes = problems(status).flatMap(([, severity, texts]) => texts.map(text => [text, severity]))
  at('alerts').replaceChildren(...notes.slice(0, MOST_ALERTS).map(([text, severity]) => element('p', { class: `note ${severity}` }, name(text))),
    ...(notes.length > MOST_ALERTS ? [element('p', { class: 'muted' }, `And ${whole(notes.length - MOST_ALERTS)} more, see Virtual hosts.`)] : []))
  facts(at('facts'), [
    ['Version', `${status.version}, ${status.build}`],
    ['Started', time(status.started_at), '', `${duration(Date.now() / 1000 - status.started_at)} ago, process ${status.process}`],
    ['Rules', status.rules, '', `active since ${time(status.rules_since)}`],
    ['Last reload', reload ? `${reload.result} (${reload.reason})` : 'none since startup', reload?.errors.length ? 'bad' : '', reload ? time(reload.at) : ''],
    ['Shadow', status.shadow ? `rules ${status.shadow}` : 'none'],
    ['Audit log', status.audit_failure ?? 'no error', status.audit_failure ? 'bad' : ''],
  ])
  const { upstream } = status
  const refused = Object.entries(upstream.attempts).filter(([result, attempts]) => result !== 'ok' && attempts)
  const failure = upstream.last_error && `${upstream.last_error.error} (${time(upstream.last_error.at)})`
  at('links').replaceChildren(table(['connection', 'state', 'last error'], [
    ['producers to RabbitMQ', badge(`${whole(upstream.connections)} open`, upstream.connections ? 'good' : ''),
      [refused.map(([result, attempts]) => `${result} ${attempts}`).join(', '), failure].filter(Boolean).join('; ') || null],
    ...status.vhosts.map(vhost => [element('span', {}, 'control connection to ', name(vhost.vhost)),
      badge(vhost.connected ? 'connected' : 'not connected', vhost.connected ? 'good' : 'bad'), vhost.fault || null]),
    ...status.remotes.map(remote => [element('span', {}, 'broker ', name(remote.broker)),
      badge(remote.connected ? `connected${remote.under_way ? `, ${whole(remote.under_way)} waiting` : ''}` : 'not connected', remote.connected ? 'good' : 'bad'),
      remote.error || null]),
  ]))
  at('vhosts').replaceChildren(table(['virtual host', 'broker', 'queues', 'findings'],
    status.vhosts.map(vhost => [vhost.vhost, broker(vhost), vhost.queues, findings(vhost)])))
}

function broker({ broker }) {
  if (!broker) return null
  const version = name(`${broker.product} ${broker.version}`)
  return broker.supported ? version : element('span', {}, version, ' ', badge('not supported', 'warn'))
}

// The worst of all problems, and the next ones.
function worst(status) {
  const [[title, severity] = ['ready', 'good'], ...others] = problems(status)
  const more = others.length ? `also: ${others.map(([other]) => other).join(', ')}` : severity === 'good' || status.ready
    ? `ready for ${duration(Date.now() / 1000 - status.started_at)}` : ''
  return ['State', title, severity, more]
}

function findings(vhost) {
  const lists = FINDINGS.map(([kind, , , , texts]) => [kind, texts(vhost)]).filter(([, texts]) => texts.length)
  if (!lists.length) return badge('nothing to report', 'good')
  return element('ul', {}, ...lists.flatMap(([kind, texts]) => texts.map(text => element('li', {}, badge(kind, 'warn'), ' ', name(text)))))
}

function traffic() {
  const rows = [...state.traffic.exchanges.values()].filter(row => row.total)
    .sort((left, right) => (right.per_second ?? 0) - (left.per_second ?? 0) || right.total - left.total)
  at('outcomes').replaceChildren(table(['virtual host', 'exchange', 'outcome', 'per second', 'total'], rows.map(row => [
    row.vhost, row.exchange, element('span', { class: `swatch ${row.outcome}` }, row.outcome), element('span', {}, rate(row.per_second)), row.total]),
  'Nothing has been published yet.'))
}

function chart() {
  const { points, series, at: now } = state.traffic
  const columns = STACKED.map(outcome => series.indexOf(outcome) + 1)
  const width = at('chart').clientWidth
  const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom }
  const most = Math.max(1, ...points.map(point => columns.reduce((sum, column) => sum + point[column], 0)))
  const step = [1, 2, 5, 10].map(size => size * 10 ** Math.floor(Math.log10(most / 3))).find(size => size >= most / 4)
  const top = Math.ceil(most / step) * step
  span = Math.min(SECONDS, Math.max(120, points.length ? now - points[0][0] : 0))
  const x = seconds => MARGIN.left + inner.width * (1 - (now - seconds) / span)
  const y = value => MARGIN.top + inner.height * (1 - value / top)
  const parts = []
  for (let value = 0; value <= top + step / 2; value += step)
    parts.push(svg('line', { class: 'grid', x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
      svg('text', { x: MARGIN.left - 6, y: y(value) + 4, 'text-anchor': 'end' }, rate(value)))
  const tick = [0.5, 1, 3, 5].find(minutes => span / 60 / minutes <= (width < 500 ? 3 : 6)) ?? 5
  for (let minutes = 0; minutes * 60 <= span; minutes += tick)
    parts.push(svg('text', { x: x(now - minutes * 60), y: HEIGHT - 5, 'text-anchor': minutes * 60 > span * 0.97 ? 'start' : minutes ? 'middle' : 'end' },
      minutes ? `−${minutes} min` : 'now'))
  const base = points.map(() => 0)
  STACKED.forEach((outcome, index) => {
    const lower = [...base]
    points.forEach((point, place) => { base[place] += point[columns[index]] })
    if (!base.some((value, place) => value > lower[place])) return
    const line = values => points.map((point, place) => `${x(point[0]).toFixed(1)},${y(values[place]).toFixed(1)}`)
    parts.push(svg('polygon', { class: outcome, points: [...line(base), ...line(lower).reverse()].join(' ') }))
  })
  const chosen = cursor === null || !points.length ? null : points.reduce((best, point) =>
    Math.abs(point[0] - (now - cursor)) < Math.abs(best[0] - (now - cursor)) ? point : best)
  if (chosen) parts.push(svg('line', { class: 'cursor', x1: x(chosen[0]), x2: x(chosen[0]), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }))
  at('chart').replaceChildren(svg('svg', { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` }, ...parts))
  const last = chosen ?? points.at(-1)
  at('chart-time').replaceChildren(chosen ? `at ${time(chosen[0]).slice(11)}` : `last ${Math.round(span / 60)} minutes`)
  at('legend').replaceChildren(...STACKED.map((outcome, index) => element('li', { class: `swatch ${outcome}` },
    `${outcome} `, element('b', {}, `${rate(last ? last[columns[index]] : 0)}/s`))))
  at('chart').setAttribute('aria-label', `Publishes per second by outcome: ${at('legend').innerText.replaceAll('\n', ', ')}. Arrow keys move through the last 15 minutes.`)
}

export function start() {
  const move = seconds => {
    cursor = seconds === null ? null : Math.min(span, Math.max(0, seconds))
    if (state.traffic) chart()
  }
  at('chart').addEventListener('pointermove', event => {
    const box = at('chart').getBoundingClientRect()
    move(span * (1 - (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right)))
  })
  at('chart').addEventListener('pointerleave', () => move(null))
  at('chart').addEventListener('blur', () => move(null))
  at('chart').addEventListener('keydown', event => {
    const seconds = { ArrowLeft: 10, ArrowRight: -10, Home: SECONDS, End: -SECONDS }[event.key]
    if (event.key === 'Escape') move(null)
    if (!seconds) return
    event.preventDefault()
    move((cursor ?? 0) + seconds)
  })
  addEventListener('resize', () => { if (state.traffic && at('chart').clientWidth) chart() })
}
