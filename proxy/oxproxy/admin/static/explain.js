// Explain: which bindings are evaluated for a message, the values that their conditions compare, and the destinations.

import { at, badge, count, element, listed, name, table, visible } from './dom.js'
import { json, state } from './feed.js'
import { result } from './shadow.js'

export const topics = ['status']
const UNKNOWN = 'not known'
const NUMERIC = new Set(['delivery_mode', 'priority', 'timestamp'])
const PROPERTIES = ['content_type', 'content_encoding', 'correlation_id', 'reply_to', 'message_id', 'type', 'user_id', 'app_id',
  'cluster_id', 'delivery_mode', 'priority', 'timestamp', 'expiration']
const MOST_OPEN = 20
const MOST_OFFERED = 500

let known = ''

// Offers the names in the rules and in recent publishes.
export async function show() {
  const version = state.status?.rules
  if (!version || known === version) return
  known = version
  const routes = await json('api/routes').catch(() => { known = '' })
  if (!routes) return
  const exchanges = routes.vhosts.flatMap(vhost => vhost.exchanges)
  const bindings = exchanges.flatMap(exchange => exchange.bindings)
  offer('vhosts', routes.vhosts.map(vhost => vhost.vhost))
  offer('exchanges', exchanges.map(exchange => exchange.exchange))
  offer('keys', [...state.publishes.map(publish => publish.routing_key), ...bindings.map(binding => binding.routing_key)])
  offer('headers', [...state.publishes.flatMap(publish => publish.header_names ?? []),
    ...bindings.flatMap(binding => Object.entries(binding.conditions).map(([key, value]) => headerOf(key, value)))])
}

const offer = (list, names) => at(`known-${list}`).replaceChildren(
  ...[...new Set(names.filter(Boolean))].slice(0, MOST_OFFERED).map(text => element('option', { value: text })))

// A condition names its header in the operator ("x-?hkv= amount") or as the value of x-?hkex, or its key is the header.
function headerOf(operator, expected) {
  const [, header] = /^x-\?hk\S* ?(.*)$/.exec(operator) ?? []
  return header === undefined ? (operator.startsWith('x-') ? '' : operator) : header || String(expected)
}

function select(label, names, chosen) {
  return element('select', { name: 'type', 'aria-label': label }, ...names.map(text => element('option', { value: text, selected: text === chosen }, text)))
}

function row(list, after, ...fields) {
  const made = element('div', { class: 'header' }, ...fields,
    element('button', { type: 'button', onclick: () => { made.remove(); at(after).focus() } }, 'Remove'))
  at(list).append(made)
  return made
}

function header(key = '', type = 'string', value = '') {
  const text = element('input', { name: 'value', value, 'aria-label': 'Value', placeholder: type === UNKNOWN ? 'not recorded' : 'value' })
  const types = select('Type', ['string', 'int', 'float', 'bool', 'null', UNKNOWN], type)
  text.addEventListener('input', () => { if (types.value === UNKNOWN) types.value = 'string' })
  return row('headers', 'add', element('input', { name: 'header', list: 'known-headers', autocomplete: 'off', value: key, 'aria-label': 'Header name', placeholder: 'name' }), types, text)
}

function property() {
  return row('properties', 'add-property', select('Property', PROPERTIES, 'type'), element('input', { name: 'value', 'aria-label': 'Value', placeholder: 'value' }))
}

export function load(publish) {
  const form = at('message').elements
  form.vhost.value = publish.vhost
  form.exchange.value = publish.exchange
  form.key.value = publish.routing_key
  form.size.value = publish.size ?? 0
  form.at.value = publish.at
  for (const list of ['headers', 'properties', 'answer']) at(list).replaceChildren()
  for (const key of publish.header_names ?? []) {
    const known = key in publish.headers
    const value = publish.headers[key]
    const type = !known ? UNKNOWN : value === null ? 'null' : typeof value === 'boolean' ? 'bool' : typeof value === 'number'
      ? (Number.isInteger(value) ? 'int' : 'float') : 'string'
    header(key, type, !known ? '' : type === 'string' && typeof value !== 'string' ? JSON.stringify(value) : String(value ?? ''))
  }
  const lacking = [...(publish.header_names === null ? ['its headers'] : publish.header_names.filter(key => !(key in publish.headers))),
    ...(publish.size === null ? ['its size'] : []), 'its properties']
  at('incomplete').hidden = false
  at('incomplete').replaceChildren('Not recorded, therefore omitted here: ', ...listed(lacking), '. Only values of headers in audit.headers are recorded.')
  location.hash = 'explain'
  form.exchange.focus()
}

function scalar(type, text) {
  if (type === 'null') return 'null'
  if (type === 'bool') {
    if (!/^(true|false)$/.test(text.trim())) throw new Error(`value of a header: got ${JSON.stringify(text)}, expected true or false`)
    return text.trim()
  }
  if (type === 'string') return JSON.stringify(text)
  const number = text.trim()
  if (!(type === 'int' ? /^[-+]?\d+$/ : /^[-+]?\d+(\.\d+)?([eE][-+]?\d+)?$/).test(number))
    throw new Error(`value of a header: got ${JSON.stringify(text)}, expected ${type === 'int' ? 'an integer' : 'a number'}`)
  return type === 'float' && /^[-+]?\d+$/.test(number) ? `${number}.0` : number
}

// The message is built as text, since JavaScript would turn 1.0 into an integer, and large integers would be inexact.
function described(form) {
  const fields = list => [...at(list).children].map(line => [...line.querySelectorAll('input, select')].map(field => field.value))
  const headers = fields('headers').filter(([key]) => key)
  const known = headers.filter(([, type]) => type !== UNKNOWN).map(([key, type, text]) => `${JSON.stringify(key)}: ${scalar(type, text)}`)
  const properties = fields('properties').filter(([, text]) => text).map(([key, text]) =>
    `${key}: ${NUMERIC.has(key) && /^\d+$/.test(text) ? text : JSON.stringify(text)}`)
  const parts = [`exchange: ${JSON.stringify(form.exchange.value)}`, `routing_key: ${JSON.stringify(form.key.value)}`,
    ...(known.length ? [`headers: {${known.join(', ')}}`] : []), ...(properties.length ? [`properties: {${properties.join(', ')}}`] : []),
    ...(Number(form.size.value) ? [`body_size: ${Number(form.size.value)}`] : [])]
  const about = [...(form.vhost.value ? [`vhost: ${JSON.stringify(form.vhost.value)}`] : []), ...(form.at.value ? [`at: ${JSON.stringify(form.at.value)}`] : [])]
  return { publish: parts.join(', '), about, at: form.at.value, unknown: headers.filter(([, type]) => type === UNKNOWN).map(([key]) => key) }
}

async function explain(event) {
  event.preventDefault()
  try {
    const message = described(at('message').elements)
    const answer = await json('explain', { method: 'POST', body: `{${[message.publish, ...message.about].join(', ')}}` })
    at('answer').replaceChildren(summary(answer, message), ...answer.walk.map(step => walked(step, message.unknown)),
      ...(answer.addresses.length ? [element('div', { class: 'card' }, element('h3', {}, 'Address table'), element('div', { class: 'wide' },
        table(['address', 'pattern', 'result', 'target'], answer.addresses.map(address => [address.address, address.pattern ?? 'no rule', address.result ?? '', address.target ?? '']))))] : []),
      ...(answer.note ? [] : [asTest(answer, message)])) // a test that publishes to an exchange without rules always fails
  } catch (error) {
    at('answer').replaceChildren(element('p', { class: 'note bad' }, visible(error.message)))
  }
}

function summary(answer, message) {
  return element('div', { class: 'card' }, element('h3', {}, 'Result'), element('p', { class: 'outcome' }, result(answer)),
    ...(answer.note ? [element('p', { class: 'note warn' }, name(answer.note))] : []),
    ...(message.unknown.length ? [element('p', { class: 'note warn' }, 'Decided without headers whose values are unknown: ', ...listed(message.unknown))] : []),
    ...(Object.keys(answer.missing).length ? [table(['missing destination', 'reason'], Object.entries(answer.missing))] : []),
    ...answer.failed.map(text => element('p', { class: 'note bad' }, name(text))),
    element('p', { class: 'muted' }, 'Rules ', name(answer.rules), ', virtual host ', name(answer.vhost), `, at ${answer.at}`))
}

function walked(step, unknown) {
  const far = step.bindings.filter(binding => !isNear(binding, unknown)).length
  const card = element('div', { class: `card${far && step.bindings.length > MOST_OPEN ? ' near' : ''}` })
  const hide = element('input', { type: 'checkbox', checked: card.classList.contains('near'), onchange: () => card.classList.toggle('near', hide.checked) })
  card.append(element('div', { class: 'head' }, element('h3', {}, 'Exchange ', name(step.exchange), ' ', element('span', { class: 'muted' }, step.type)),
    ...(far ? [element('label', {}, hide, `Hide ${count(far, 'binding')} not nearly true`)] : [])),
    ...step.filters.map(filter => element('p', { class: filter.breach ? 'note bad' : '' }, badge(filter.breach ? filter.observed ? 'observed' : 'filtered' : 'passed', filter.breach ? 'bad' : 'good'),
      ' filter ', name(filter.filter), ...(filter.breach ? [': ', name(filter.breach)] : []))),
    ...(step.contract ?? []).map(required => element('p', { class: required.violated ? 'note bad' : '' }, badge(required.violated ? required.observed ? 'observed' : 'violated' : required.verdict, required.violated ? 'bad' : 'good'),
      ' require ', name(`${required.condition}: ${required.expected}`), ...(required.violated && required.seen !== null ? [': got ', name(JSON.stringify(required.seen))] : []))),
    ...(step.bindings.length ? [element('ol', { class: 'walk' }, ...step.bindings.map(binding => element('li', { class: isNear(binding, unknown) ? '' : 'far' }, visited(binding, step.bindings.length, unknown))))]
      : [element('p', { class: 'muted' }, 'No binding is visited.')]),
    ...(step.alternate === null ? [] : [element('p', {}, `${step.filters.some(filter => filter.breach) ? 'Continues' : 'No destination: continues'} at the alternate exchange `, name(step.alternate))]))
  return card
}

// Returns true if a condition tests a header whose value is not known.
function looksAt(unknown, { header }) {
  return unknown.includes(header)
}

// A binding is nearly true if a single condition is false, and others are true.
function isNear(binding, unknown) {
  const failing = binding.operators.filter(operator => operator.verdict !== 'match').length
  return binding.result || !isCertain(binding, unknown) || (failing === 1 && binding.operators.length > 1)
}

// Returns true if the conditions with known values determine the result.
function isCertain({ match, operators }, unknown) {
  const known = operators.filter(operator => !looksAt(unknown, operator))
  return known.length === operators.length || (match === 'all' && known.some(operator => operator.verdict !== 'match')) ||
    (match === 'any' && known.some(operator => operator.verdict === 'match'))
}

function visited(binding, bindings, unknown) {
  const effects = [...binding.added.map(destination => `adds ${destination}`), ...binding.removed.map(destination => `removes ${destination}`),
    ...(binding.goto ? [`continues at order ${binding.goto}`] : []), ...(binding.stop ? ['stops the evaluation'] : []), ...(binding.error ? [`error: ${binding.error}`] : []),
    ...binding.regex_budget_spent.map(owner => `regex budget of ${owner} exhausted`)]
  const conditions = binding.operators.map(condition => [condition.operator, JSON.stringify(condition.expected), ...(looksAt(unknown, condition)
    ? [badge('value not known', 'warn'), badge('not known', 'warn')]
    : [condition.verdict === 'absent' ? '–' : JSON.stringify(condition.seen), badge(condition.verdict, condition.verdict === 'match' ? 'good' : 'bad')])])
  const verdict = isCertain(binding, unknown) ? badge(binding.result ? '✓ true' : '✗ false', binding.result ? 'good' : '') : badge('? not known', 'warn')
  return element('details', { open: binding.result || bindings <= MOST_OPEN },
    element('summary', {}, verdict, ' ', element('strong', {}, name(binding.binding)), ' → ',
      name(typeof binding.destination === 'string' ? binding.destination : Object.values(binding.destination).join(' ')),
      element('span', { class: 'muted' }, ` order ${binding.order}, ${binding.match}`)),
    ...(conditions.length ? [element('div', { class: 'wide' }, table(['condition', 'expected', 'actual', 'verdict'], conditions))] : [element('p', { class: 'muted' }, 'No conditions.')]),
    ...(effects.length ? [element('p', {}, ...listed(effects))] : []))
}

function asTest(answer, message) {
  const places = ['queues', 'exchanges', 'remotes'].filter(kind => answer[kind].length).map(kind => `${kind}: ${JSON.stringify(answer[kind])}`)
  const expect = answer.error ? [`error: ${JSON.stringify(answer.error)}`] : [...places, ...(places.length ? [] : [`outcome: ${answer.outcome}`])]
  const form = at('message').elements
  const text = [`  - name: ${JSON.stringify(`${form.exchange.value} with key ${form.key.value}: ${answer.outcome}`)}`, `    publish: {${message.publish}}`,
    ...(message.at ? [`    at: ${JSON.stringify(message.at)}`] : []), `    expect: {${expect.join(', ')}}`,
    ...(message.unknown.length ? [`    # without headers that were not recorded: ${JSON.stringify(message.unknown)}`] : [])].join('\n')
  const area = element('textarea', { id: 'test', readOnly: true, rows: 6, value: text, spellcheck: false, 'aria-label': 'Test for the rules file' })
  const copy = element('button', { type: 'button', onclick: async () => {
    area.select()
    // A page from another host over plain HTTP has no navigator.clipboard.
    const copied = await navigator.clipboard?.writeText(text).then(() => true, () => false) ?? document.execCommand('copy')
    if (copied) copy.textContent = 'Copied'
  } }, 'Copy')
  return element('div', { class: 'card' }, element('div', { class: 'head' }, element('h3', {}, 'As a test for the rules file, under tests:'), copy), area)
}

export function start() {
  at('add').addEventListener('click', () => header().querySelector('input').focus())
  at('add-property').addEventListener('click', () => property().querySelector('select').focus())
  at('message').addEventListener('submit', explain)
  header()
}
