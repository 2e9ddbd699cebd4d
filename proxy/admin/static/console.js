// The console: four views of the documented pages of the admin address. Everything from outside is set as text.

const VIEWS = ['overview', 'rules', 'explain', 'recent']
const EVERY = 2000
const NUMERIC = new Set(['per second', 'total', 'bytes'])
const at = id => document.getElementById(id)
let before = null
let shown = null
let publishes = []
let count = 0

function element(name, options = {}, ...parts) {
  const made = document.createElement(name)
  for (const [key, value] of Object.entries(options)) {
    if (key === 'class') made.className = value
    else if (key.includes('-')) made.setAttribute(key, value)
    else made[key] = value
  }
  made.append(...parts)
  return made
}

// A name may be of any script and direction: it must not reverse the text next to it.
const name = text => element('bdi', {}, visible(String(text)))
const visible = text => text.replace(/[\p{Cc}\p{Cf}]/gu, sign => `\\u{${sign.codePointAt(0).toString(16)}}`)

const numeric = column => NUMERIC.has(column) ? 'number' : ''

function table(columns, rows) {
  if (!rows.length) return element('p', {}, 'None.')
  const head = element('tr', {}, ...columns.map(column => element('th', { scope: 'col', class: numeric(column) }, column)))
  const body = rows.map(row => element('tr', {}, ...row.map((cell, index) => element(
    'td', { 'data-name': columns[index], class: numeric(columns[index]) },
    cell instanceof Node ? cell : cell === null ? '' : typeof cell === 'number' ? cell.toLocaleString('en') : name(cell)))))
  return element('table', {}, element('thead', {}, head), element('tbody', {}, ...body))
}

async function get(page, options) {
  const answer = await fetch(page, { cache: 'no-store', ...options })
  const text = await answer.text()
  if (answer.status === 422) throw new Error(JSON.parse(text).errors.join('\n'))
  if (!answer.ok) throw new Error(`${page}: ${answer.status} ${text}`)
  return text
}

const json = async (page, options) => JSON.parse(await get(page, options))

function samples(text, metric) {
  const found = []
  for (const line of text.split('\n')) {
    if (!line.startsWith(`${metric}{`)) continue
    const end = line.lastIndexOf('}')
    const labels = {}
    for (const [, key, value] of line.slice(metric.length + 1, end).matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g))
      labels[key] = value.replace(/\\(.)/g, (_, sign) => sign === 'n' ? '\n' : sign)
    found.push({ labels, value: Number(line.slice(end + 1).trim().split(' ')[0]) })
  }
  return found
}

function rates(text, metric, keys) {
  const now = { seconds: performance.now() / 1000, values: new Map() }
  for (const { labels, value } of samples(text, metric)) {
    const key = JSON.stringify(keys.map(each => labels[each] ?? ''))
    now.values.set(key, (now.values.get(key) ?? 0) + value)
  }
  const earlier = before?.metric === metric ? before : null
  before = { metric, ...now }
  return [...now.values].map(([key, value]) => {
    const past = earlier?.values.get(key) ?? 0
    const rate = earlier ? Math.max(0, value - past) / (now.seconds - earlier.seconds) : null
    return { names: JSON.parse(key), value, rate }
  }).sort((one, other) => (other.rate ?? 0) - (one.rate ?? 0) || other.value - one.value)
}

const perSecond = rate => rate === null ? '…' : Number(rate.toFixed(1))

function fact(title, text, kind = '') {
  return element('div', {}, element('dt', {}, title), element('dd', { class: kind }, name(text)))
}

async function overview() {
  const [status, metrics] = [await json('status'), await get('metrics')]
  const producers = samples(metrics, 'oxproxy_connections').filter(each => each.labels.side === 'downstream')
  const build = samples(metrics, 'oxproxy_build_info')[0]?.labels.build ?? ''
  at('facts').replaceChildren(
    fact('State', status.ready ? 'ready' : `not ready: ${status.not_ready.join('; ')}`, status.ready ? 'good' : 'bad'),
    ...(status.degraded.length ? [fact('Degraded', status.degraded.join('; '), 'bad')] : []),
    fact('Version', `${status.version} ${build}`),
    ...(status.worker === null ? [] : [fact('Worker', `${status.worker}; each has a console at a port of its own`)]),
    fact('Rules', status.rules),
    fact('Last reload', status.last_reload ? JSON.stringify(status.last_reload, null, 1) : 'none'),
    fact('Producers', producers.reduce((sum, each) => sum + each.value, 0)),
    fact('Audit log', status.audit_failure ?? 'no fault', status.audit_failure ? 'bad' : ''))
  at('outcomes').replaceChildren(table(['virtual host', 'exchange', 'outcome', 'per second', 'total'],
    rates(metrics, 'oxproxy_publishes_total', ['vhost', 'exchange', 'outcome'])
      .filter(each => each.value).map(each => [...each.names, perSecond(each.rate), each.value])))
  at('vhosts').replaceChildren(...status.vhosts.map(vhost => element('div', {},
    element('p', {}, name(vhost.vhost), vhost.connected ? ' connected' : ' not connected', vhost.fault ? `: ${vhost.fault}` : ''),
    ...(Object.keys(vhost.missing).length ? [table(['missing destination', 'reason'], Object.entries(vhost.missing))] : []))))
}

async function rules() {
  const [files, metrics] = [await json('api/rules'), await get('metrics')]
  const matches = rates(metrics, 'oxproxy_binding_matches_total', ['vhost', 'exchange', 'binding'])
  const counts = new Map()
  for (const each of matches) counts.set(each.names[2], counts.has(each.names[2]) ? null : each.value)
  if (shown !== files.rules) {
    shown = files.rules
    at('files').replaceChildren(...files.files.map(file => element('div', {},
      element('h3', {}, name(file.name)),
      element('div', { class: 'file', tabIndex: 0, 'aria-label': file.name, 'role': 'region' }, element('ol', {},
        ...file.text.replace(/\n$/, '').split('\n').map((line, index) => element('li', {},
          element('span', { 'data-binding': bound(line) ?? '' }), element('span', {}, String(index + 1)),
          element('span', {}, name(line)))))))))
  }
  for (const margin of document.querySelectorAll('[data-binding]')) {
    const value = counts.get(margin.dataset.binding)
    margin.textContent = margin.dataset.binding && value !== undefined && value !== null ? value.toLocaleString('en') : ''
  }
  at('matches').replaceChildren(table(['virtual host', 'exchange', 'binding', 'per second', 'total'],
    matches.map(each => [...each.names, perSecond(each.rate), each.value])))
}

// A binding's name at its line; the table below has those of other forms too.
function bound(line) {
  const match = /\bname:\s*(?:"([^"\\]*)"|'([^']*)'|([^,}#"'\s][^,}#]*))/.exec(line)
  return match ? (match[1] ?? match[2] ?? match[3]).trim() : null
}

async function recent() {
  const answer = await json(`api/recent?after=${count}`)
  if (answer.count < count) publishes = []
  const fresh = answer.publishes.filter(each => !publishes.some(other => other.number === each.number))
  count = answer.count
  if (!fresh.length && at('failed').firstChild) return
  publishes = [...fresh.reverse(), ...publishes].slice(0, 200)
  const focused = document.activeElement?.dataset?.number
  at('failed').replaceChildren(table(
    ['time', 'result', 'virtual host', 'exchange', 'routing key', 'bytes', 'headers', 'reason', 'explain'],
    publishes.map(each => [each.at, each.result, each.vhost, each.exchange, each.routing_key, each.size,
      (each.header_names ?? []).map(key => key in each.headers ? `${key}=${JSON.stringify(each.headers[key])}` : key).join(', '),
      each.reason, each.exchange === null ? null : element('button', {
        type: 'button', 'data-number': each.number, onclick: () => load(each) }, 'Explain')])))
  if (focused) document.querySelector(`button[data-number="${focused}"]`)?.focus()
}

function header(key = '', type = 'string', value = '') {
  const options = ['string', 'int', 'float', 'bool', 'null'].map(each => element(
    'option', { value: each, selected: each === type }, each))
  const row = element('div', { class: 'header' },
    element('input', { name: 'header', value: key, 'aria-label': 'Name of the header', placeholder: 'name' }),
    element('select', { name: 'type', 'aria-label': 'Type' }, ...options),
    element('input', { name: 'value', value, 'aria-label': 'Value', placeholder: 'value' }),
    element('button', { type: 'button', onclick: () => { row.remove(); at('add').focus() } }, 'Remove'))
  at('headers').append(row)
  return row
}

function load(publish) {
  const form = at('message').elements
  form.vhost.value = publish.vhost
  form.exchange.value = publish.exchange
  form.key.value = publish.routing_key
  form.size.value = publish.size ?? 0
  at('headers').replaceChildren()
  at('answer').replaceChildren()
  const missing = (publish.header_names ?? []).filter(key => !(key in publish.headers))
  for (const [key, value] of Object.entries(publish.headers)) {
    const type = value === null ? 'null' : typeof value === 'boolean' ? 'bool' : typeof value === 'number'
      ? (Number.isInteger(value) ? 'int' : 'float') : 'string'
    header(key, type, type === 'string' && typeof value !== 'string' ? JSON.stringify(value) : String(value ?? ''))
  }
  const lacking = publish.header_names === null ? ['its headers'] : missing
  at('incomplete').hidden = !lacking.length
  at('incomplete').replaceChildren('Not known, and left out here: ', ...lacking.flatMap((key, index) => [index ? ', ' : '', name(key)]),
    '. Values are kept of headers in audit.headers only. Properties are not kept.')
  location.hash = 'explain'
}

function value(type, text) {
  if (type === 'null') return 'null'
  if (type === 'bool') return /^(true|1|yes)$/i.test(text.trim()) ? 'true' : 'false'
  if (type === 'string') return JSON.stringify(text)
  const number = text.trim()
  if (!(type === 'int' ? /^[-+]?\d+$/ : /^[-+]?\d+(\.\d+)?([eE][-+]?\d+)?$/).test(number))
    throw new Error(`value of a header: seen ${JSON.stringify(text)}, expected ${type === 'int' ? 'a whole number' : 'a number'}`)
  return type === 'float' && /^[-+]?\d+$/.test(number) ? `${number}.0` : number
}

function body(form) {
  const rows = [...at('headers').children].map(row => [...row.querySelectorAll('input, select')].map(each => each.value))
  const headers = rows.filter(([key]) => key).map(([key, type, text]) => `${JSON.stringify(key)}: ${value(type, text)}`)
  const parts = [`"exchange": ${JSON.stringify(form.exchange.value)}`, `"routing_key": ${JSON.stringify(form.key.value)}`,
    `"body_size": ${Number(form.size.value)}`, `"headers": {${headers.join(', ')}}`]
  if (form.vhost.value) parts.push(`"vhost": ${JSON.stringify(form.vhost.value)}`)
  return `{${parts.join(', ')}}`
}

async function explain(event) {
  event.preventDefault()
  try {
    const found = await json('explain', { method: 'POST', body: body(at('message').elements) })
    const reached = [...found.queues.map(each => `queue ${each}`), ...found.exchanges.map(each => `exchange ${each}`),
      ...found.remotes.map(each => `broker ${each}`)]
    at('answer').replaceChildren(
      element('h3', {}, 'Result'),
      element('p', {}, element('strong', {}, found.outcome), reached.length ? ' to ' : '',
        ...reached.flatMap((each, index) => [index ? ', ' : '', name(each)]), found.error ? `: ${found.error}` : ''),
      ...(Object.keys(found.missing).length ? [table(['missing destination', 'reason'], Object.entries(found.missing))] : []),
      ...found.walk.flatMap(step => [
        element('h3', {}, 'Exchange ', name(step.exchange)),
        element('div', { class: 'wide' }, table(['binding', 'destination', 'result', 'conditions'], step.bindings.map(binding => [
          binding.binding, Object.values(binding.destination).join(' '), binding.result ? 'true' : 'false',
          binding.operators.map(each =>
            `${each.operator} ${JSON.stringify(each.expected)}: ${each.verdict}, seen ${JSON.stringify(each.seen)}`).join('\n')])))]))
    fault(null)
  } catch (error) {
    at('answer').replaceChildren(element('p', { class: 'bad' }, visible(error.message)))
  }
}

function fault(error) {
  at('fault').hidden = !error
  at('fault').textContent = error ? `The sidecar does not answer: ${visible(error.message)}` : ''
}

const WORK = { overview, rules, recent }
const view = () => VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : 'overview'

function show() {
  for (const each of VIEWS) at(`view-${each}`).hidden = each !== view()
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#${view()}`) link.setAttribute('aria-current', 'page')
    else link.removeAttribute('aria-current')
  }
  document.title = `oxproxy: ${view()}`
}

let turn = 0
async function refresh() {
  const mine = ++turn
  show()
  try {
    if (!document.hidden) await WORK[view()]?.()
    fault(null)
  } catch (error) {
    fault(error)
  }
  if (mine === turn) setTimeout(() => mine === turn && refresh(), EVERY)
}

at('add').addEventListener('click', () => header().querySelector('input').focus())
at('message').addEventListener('submit', explain)
addEventListener('hashchange', refresh)
header()
refresh()
