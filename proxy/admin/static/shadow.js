// Shadow: compares candidate rules with the active rules on live traffic.

import { at, badge, count, duration, element, facts, name, table, visible, whole } from './dom.js'
import { json, state } from './feed.js'

export const topics = ['status', 'shadow']

export function show(topic) {
  if (topic === 'status' || state.shadow === undefined) return
  const found = state.shadow
  at('candidate').hidden = found !== null
  if (!found) {
    if (!at('comparison').querySelector('.bad')) at('comparison').replaceChildren()
    return
  }
  const share = found.compared ? found.different / found.compared : 0
  const tiles = element('dl', { class: 'tiles' })
  facts(tiles, [
    ['Candidate', found.candidate, '', `compared with ${found.live}`],
    ['Compared', whole(found.compared), '', `in ${duration(found.seconds)}`],
    ['Routed differently', whole(found.different), found.different ? 'warn' : 'good', `${(share * 100).toFixed(share && share < 0.1 ? 2 : 0)} % of compared publishes`],
    ['Not compared', whole(found.skipped + found.random), '', `${count(found.skipped, 'publish').replace(/hs$/, 'hes')} skipped under load, ${whole(found.random)} random picks`],
  ])
  const focused = document.activeElement?.id === 'stop'
  at('comparison').replaceChildren(tiles,
    element('button', { type: 'button', id: 'stop', class: 'main', onclick: stop }, 'Stop comparing'),
    ...found.exchanges.map(exchange => element('div', { class: 'card' },
      element('h3', {}, 'Exchange ', name(exchange.exchange), ' ', badge(exchange.different ? `${whole(exchange.different)} differ` : 'no difference', exchange.different ? 'warn' : 'good')),
      element('div', { class: 'wide' }, table(['publishes', 'active rules', 'candidate', 'example'], exchange.differences.map(each => [
        each.publishes, result(each.live, each.candidate), result(each.candidate, each.live), example(each.example)]), `All ${whole(exchange.compared)} are routed to the same destinations.`)),
      ...(exchange.further_differences ? [element('p', { class: 'muted' }, `And ${whole(exchange.further_differences)} with other differences.`)] : []))),
    ...(found.exchanges.length ? [] : [element('p', { class: 'card muted' }, 'Nothing has been published yet to any exchange in either set of rules.')]))
  if (focused) at('stop').focus()
}

const placesOf = found => [...found.queues.map(each => `queue ${each}`), ...found.exchanges.map(each => `exchange ${each}`), ...found.remotes.map(each => `broker ${each}`)]

// The destinations of a message; those that the other result lacks are highlighted.
export function result(found, other = found) {
  const same = placesOf(other)
  const places = placesOf(found).flatMap((each, index) => [index ? ', ' : '', same.includes(each) ? name(each) : element('mark', {}, name(each))])
  return element('span', {}, badge(found.outcome, { routed: 'good', translated: 'good', passed: '' }[found.outcome] ?? 'warn'), ' ',
    ...places, ...(found.error ? [' ', name(found.error)] : []))
}

function example(found) {
  const headers = Object.entries(found.headers).map(([key, value]) => `${key}=${JSON.stringify(value)}`)
  return `key ${JSON.stringify(found.routing_key)}${headers.length ? `, ${headers.join(', ')}` : ''}`
}

async function stop() {
  state.shadow = await json('-/shadow', { method: 'DELETE' }).then(() => null, () => null)
  show()
  at('candidate').querySelector('textarea').focus()
}

async function begin(event) {
  event.preventDefault()
  const form = at('candidate').elements
  const files = await Promise.all([...form.files.files].map(async file => [file.name, await file.text()]))
  try {
    if (!files.length && !form.text.value.trim()) throw new Error('Choose files, or enter the text of a file.')
    state.shadow = await json('-/shadow', { method: 'POST', body: files.length ? JSON.stringify({ files }) : form.text.value })
    at('comparison').replaceChildren()
    show()
    at('stop').focus()
  } catch (error) {
    at('comparison').replaceChildren(element('p', { class: 'note bad', role: 'alert' }, visible(error.message)))
  }
}

export function start() {
  at('candidate').addEventListener('submit', begin)
}
