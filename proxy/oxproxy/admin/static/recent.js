// Recent: publishes that reached no queue or were refused.

import { at, badge, element, listed, name, table, visible } from './dom.js'
import { json, state } from './feed.js'
import { load } from './explain.js'

export const topics = ['status', 'recent']
const KINDS = { unroutable: 'warn', violating: 'warn', returned: 'warn', rejected: 'bad', nacked: 'bad', closed: 'bad' }

let routes = null
let loaded = ''

export function show(topic) {
  if (topic === 'status') return refresh()
  const wanted = at('result').value
  const publishes = state.publishes.filter(publish => !wanted || publish.result === wanted)
  const focused = document.activeElement?.dataset?.number
  at('failed').replaceChildren(table(
    ['time', 'result', 'virtual host', 'exchange', 'routing key', 'bytes', 'headers', 'reason', 'explain'],
    publishes.map(publish => [
      moment(publish.at), badge(publish.result, KINDS[publish.result]), publish.vhost, publish.exchange, publish.routing_key, publish.size,
      element('span', {}, ...listed((publish.header_names ?? []).map(key =>
        key in publish.headers ? `${key}=${JSON.stringify(publish.headers[key])}` : key))),
      publish.reason, publish.exchange === null ? null : element('button', {
        type: 'button', 'data-number': publish.number, onclick: () => load(publish) }, 'Explain')]),
    'Nothing has failed since this view was opened.'))
  if (focused) document.querySelector(`button[data-number="${focused}"]`)?.focus()
  commands(publishes)
}

async function refresh() {
  const version = state.status?.rules
  if (!version || version === loaded) return
  loaded = version
  try {
    routes = await json('api/routes')
    show()
  } catch {
    loaded = ''
  }
}

// The queues that the alternate exchange of an exchange routes to.
function parking(exchanges, alternate) {
  const bindings = exchanges.find(each => each.exchange === alternate)?.bindings ?? []
  return [...new Set(bindings.filter(binding => binding.destination.type === 'queue').map(binding => binding.destination.name))]
}

// Shows the commands for the exchanges of the listed publishes; if none is listed, for all exchanges.
function commands(publishes) {
  const items = (routes?.vhosts ?? []).flatMap(({ vhost, exchanges }) => exchanges
    .filter(each => each.alternate !== null)
    .filter(each => !publishes.length || publishes.some(publish => publish.vhost === vhost && publish.exchange === each.exchange))
    .flatMap(each => parking(exchanges, each.alternate).map(queue => element('li', {}, name(each.exchange), ': ',
      element('code', {}, visible(`oxproxy replay --queue ${quoted(queue)} --vhost ${quoted(vhost)} --dry-run`))))))
  at('parked').replaceChildren(...(items.length ? [element('p', {}, 'For these exchanges:'), element('ul', {}, ...items)] : []))
}

const quoted = word => /^[\w.@%+:/-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`

// The date is omitted for today.
function moment(at) {
  const today = new Date().toISOString().slice(0, 10)
  return element('time', { dateTime: at, title: at }, at.startsWith(today) ? at.slice(11, 23) : at.slice(0, 19).replace('T', ' '))
}

export function start() {
  at('result').addEventListener('change', () => show())
}
