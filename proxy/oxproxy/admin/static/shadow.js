// Shadow: compares candidate rules with the active rules on live traffic.

import { at, badge, count, duration, element, facts, listed, name, table, visible, whole } from './dom.js'
import { json, state } from './feed.js'

export const topics = ['status', 'shadow']

export function show(topic) {
  if (topic === 'status' || state.shadow === undefined) return
  const report = state.shadow
  at('candidate').hidden = report !== null
  if (!report) {
    if (!at('comparison').querySelector('.bad')) at('comparison').replaceChildren()
    return
  }
  const share = report.compared ? report.different / report.compared : 0
  const tiles = element('dl', { class: 'tiles' })
  facts(tiles, [
    ['Candidate', report.candidate, '', `compared with ${report.live}`],
    ['Compared', whole(report.compared), '', `in ${duration(report.seconds)}`],
    ['Routed differently', whole(report.different), report.different ? 'warn' : 'good', `${(share * 100).toFixed(share && share < 0.1 ? 2 : 0)} % of compared publishes`],
    ['Not compared', whole(report.skipped + report.random), '', `${count(report.skipped, 'publish', 'publishes')} skipped under load, ${whole(report.random)} random picks`],
  ])
  const focused = document.activeElement?.id === 'stop'
  at('comparison').replaceChildren(tiles,
    element('button', { type: 'button', id: 'stop', class: 'main', onclick: stop }, 'Stop comparing'),
    ...(report.absent.length ? [element('p', { class: 'note warn' }, 'The candidate does not contain these exchanges of the active rules: ',
      ...listed(report.absent.map(exchange => exchange.exchange)), '. With the candidate, their messages would be passed on unchanged.')] : []),
    ...report.exchanges.map(exchange => element('div', { class: 'card' },
      element('h3', {}, 'Exchange ', name(exchange.exchange), ' ', badge(exchange.different ? `${whole(exchange.different)} differ` : 'no difference', exchange.different ? 'warn' : 'good')),
      element('div', { class: 'wide' }, table(['publishes', 'active rules', 'candidate', 'example'], exchange.differences.map(difference => [
        difference.publishes, result(difference.live, difference.candidate), result(difference.candidate, difference.live), example(difference.example)]), `All ${whole(exchange.compared)} are routed to the same destinations.`)),
      ...(exchange.further_differences ? [element('p', { class: 'muted' }, `And ${whole(exchange.further_differences)} with other differences.`)] : []))),
    ...(report.exchanges.length ? [] : [element('p', { class: 'card muted' }, 'Nothing has been published yet to any exchange in either set of rules.')]))
  if (focused) at('stop').focus()
}

const placesOf = decision => [...decision.queues.map(text => `queue ${text}`), ...decision.exchanges.map(text => `exchange ${text}`), ...decision.remotes.map(text => `broker ${text}`)]

// The destinations of a message; those that the other result lacks are highlighted.
export function result(decision, other = decision) {
  const same = placesOf(other)
  const places = placesOf(decision).flatMap((place, index) => [index ? ', ' : '', same.includes(place) ? name(place) : element('mark', {}, name(place))])
  return element('span', {}, badge(decision.outcome, { routed: 'good', translated: 'good', passed: '' }[decision.outcome] ?? 'warn'), ' ',
    ...places, ...(decision.error ? [' ', name(decision.error)] : []))
}

function example(message) {
  const headers = Object.entries(message.headers).map(([key, value]) => `${key}=${JSON.stringify(value)}`)
  return `key ${JSON.stringify(message.routing_key)}${headers.length ? `, ${headers.join(', ')}` : ''}`
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
