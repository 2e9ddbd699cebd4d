// Recent: publishes that reached no queue or were refused.

import { at, badge, element, listed, table } from './dom.js'
import { state } from './feed.js'
import { load } from './explain.js'

export const topics = ['status', 'recent']
const KINDS = { unroutable: 'warn', violating: 'warn', returned: 'warn', rejected: 'bad', nacked: 'bad', closed: 'bad' }

export function show(topic) {
  if (topic === 'status') return
  const wanted = at('result').value
  const focused = document.activeElement?.dataset?.number
  at('failed').replaceChildren(table(
    ['time', 'result', 'virtual host', 'exchange', 'routing key', 'bytes', 'headers', 'reason', 'explain'],
    state.publishes.filter(publish => !wanted || publish.result === wanted).map(publish => [
      moment(publish.at), badge(publish.result, KINDS[publish.result]), publish.vhost, publish.exchange, publish.routing_key, publish.size,
      element('span', {}, ...listed((publish.header_names ?? []).map(key =>
        key in publish.headers ? `${key}=${JSON.stringify(publish.headers[key])}` : key))),
      publish.reason, publish.exchange === null ? null : element('button', {
        type: 'button', 'data-number': publish.number, onclick: () => load(publish) }, 'Explain')]),
    'Nothing has failed since this view was opened.'))
  if (focused) document.querySelector(`button[data-number="${focused}"]`)?.focus()
}

// The date is omitted for today.
function moment(at) {
  const today = new Date().toISOString().slice(0, 10)
  return element('time', { dateTime: at, title: at }, at.startsWith(today) ? at.slice(11, 23) : at.slice(0, 19).replace('T', ' '))
}

export function start() {
  at('result').addEventListener('change', () => show())
}
