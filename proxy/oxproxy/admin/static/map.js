// Map: exchanges, bindings, destinations and other brokers as a graph. Bindings between the same two boxes are one line.

import { at, badge, count, element, name, rate, short, svg, table, visible, whole } from './dom.js'
import { json, numbers, state } from './feed.js'

export const topics = ['status', 'traffic']
const BOX = { narrow: 150, wide: 280, height: 42, gap: 14, between: 90 }
// Maximum number of boxes in a column. If there are more names, those with a common prefix share a box.
const MOST = 24
const LISTED = 50
// Width in pixels below which a list is shown.
const NARROW = 480
const REST = 'rest'
let routes = null
let loading = false
let drawn = ''
let width = 0
let unfolded = new Set()
let graph = { nodes: [], edges: [] }
let chosen = null

export async function show() {
  if (!state.status) return
  // Client declarations and missing destinations change without a reload.
  const version = JSON.stringify([state.status.rules, state.status.vhosts.map(vhost => [vhost.missing, vhost.declared])])
  if (loading) return
  if (version === drawn) {
    if (at('graph').clientWidth === width) measure()
    else draw()
    return
  }
  loading = true
  try {
    routes = await json('api/routes')
    drawn = version
    const before = at('map-vhost').value
    at('map-vhost').replaceChildren(...routes.vhosts.map(vhost => element('option', { value: vhost.vhost, selected: vhost.vhost === before }, visible(vhost.vhost))))
    draw()
  } catch (error) {
    at('graph').replaceChildren(element('p', { class: 'note bad' }, visible(error.message)))
  } finally {
    loading = false
  }
}

const beginning = text => /^[^._:/ -]+[._:/ -]/.exec(text)?.[0]

// Return the boxes of a column: the names, or groups of names if there are too many. Opened groups are shown as names.
function grouped(names, weight) {
  const [boxes, opened] = [new Map(), new Map()]
  const add = (to, key, member) => to.set(key, [...(to.get(key) ?? []), member])
  for (const member of names) {
    const group = names.length > MOST ? beginning(member.name) ?? '' : ''
    const key = `${member.kind} ${group}…`
    if (group && !unfolded.has(key)) add(boxes, key, member)
    else add(unfolded.has(key) ? opened : boxes, `${member.kind} ${member.name}`, member)
  }
  if (boxes.size <= MOST || unfolded.has(REST)) return new Map([...opened, ...boxes])
  const weights = new Map([...boxes].map(([key, members]) => [key, Math.max(...members.map(weight))]))
  const heavy = [...boxes.keys()].sort((left, right) => weights.get(right) - weights.get(left)).slice(0, MOST - 1)
  const rest = [...boxes].filter(([key]) => !heavy.includes(key)).flatMap(([, members]) => members)
  return new Map([...opened, ...[...boxes].filter(([key]) => heavy.includes(key)), [REST, rest]])
}

function build() {
  const vhost = routes.vhosts.find(candidate => candidate.vhost === at('map-vhost').value) ?? routes.vhosts[0]
  if (!vhost) return { nodes: [], edges: [] }
  const missing = routes.missing[vhost.vhost] ?? {}
  const wanted = at('map-filter').value.toLowerCase()
  const fits = (...texts) => !wanted || texts.some(text => text.toLowerCase().includes(wanted))
  const ruled = new Map(vhost.exchanges.map(exchange => [exchange.exchange, exchange]))
  const links = vhost.exchanges.flatMap(exchange => [
    ...exchange.bindings.map(binding => ({ from: exchange.exchange, binding, to: binding.destination })),
    ...(exchange.alternate === null ? [] : [{ from: exchange.exchange, to: { type: 'exchange', name: exchange.alternate }, alternate: true }]),
  ]).filter(link => fits(link.from, link.to.name, link.binding?.binding ?? ''))
  const depth = new Map([...ruled.keys()].map(exchangeName => [exchangeName, 0]))
  for (let round = 0, moved = true; moved && round < ruled.size; round++) {
    moved = false
    for (const { from, to } of links) {
      if (to.type === 'exchange' && ruled.has(to.name) && to.name !== from && depth.get(to.name) <= depth.get(from) && depth.get(from) < 6) {
        depth.set(to.name, depth.get(from) + 1)
        moved = true
      }
    }
  }
  const columns = []
  const place = (column, member) => { (columns[column] ??= new Map()).set(`${member.kind} ${member.name}`, member) }
  for (const [exchangeName, exchange] of ruled) {
    if (fits(exchangeName) || links.some(link => link.from === exchangeName)) place(depth.get(exchangeName), { kind: 'exchange', name: exchangeName, exchange })
  }
  const last = Math.max(0, ...depth.values()) + 1
  for (const { to } of links) {
    if (!(to.type === 'exchange' && ruled.has(to.name))) place(last, { kind: to.type, name: to.name, outside: to.type === 'exchange', missing: missing[`${to.type} ${to.name}`] })
  }
  if (vhost.addresses.length && fits('address table')) place(0, { kind: 'addresses', name: 'address table', rules: vhost.addresses })
  for (const broker of vhost.brokers) if (fits(broker.name)) place(last, { kind: 'broker', name: broker.name, address: broker.address })
  const weights = new Map()
  for (const { from, binding, to } of links) {
    const weight = binding ? 1 + (numbers('bindings', vhost.vhost, from, binding.binding)?.total ?? 0) : 1
    for (const key of [`exchange ${from}`, `${to.type} ${to.name}`]) weights.set(key, (weights.get(key) ?? 0) + weight)
  }
  const boxOf = new Map()
  const nodes = columns.filter(Boolean).flatMap((column, index) => [...grouped([...column.values()], member => weights.get(`${member.kind} ${member.name}`) ?? 0)].map(([key, members]) => {
    const node = { key, column: index, members, group: members.length > 1 }
    for (const member of members) boxOf.set(`${member.kind} ${member.name}`, node)
    return node
  }))
  const edges = new Map()
  const connect = (from, to, part) => {
    if (!from || !to) return
    const key = `${from.key}\n${to.key}`
    if (!edges.has(key)) edges.set(key, { key, from, to, links: [] })
    if (part) edges.get(key).links.push(part)
  }
  for (const link of links) connect(boxOf.get(`exchange ${link.from}`), boxOf.get(`${link.to.type} ${link.to.name}`), { ...link, vhost: vhost.vhost })
  const table = boxOf.get('addresses address table')
  for (const broker of vhost.brokers) {
    const rules = vhost.addresses.filter(rule => rule.translation.includes(`//${broker.name}`) || rule.translation.includes(`@${broker.name}`))
    for (const rule of rules) connect(table, boxOf.get(`broker ${broker.name}`), { rule })
  }
  return { nodes, edges: [...edges.values()], vhost: vhost.vhost }
}

function draw() {
  const focused = document.activeElement?.dataset?.key
  graph = build()
  width = at('graph').clientWidth
  at('map-fold').hidden = !unfolded.size
  if (!graph.nodes.length) {
    at('graph').replaceChildren(element('p', { class: 'muted' }, routes.vhosts.length ? 'No name matches the filter.' : 'The rules have no exchanges.'))
    return
  }
  if (width < NARROW) {
    list()
    shown(focused)
    return
  }
  const columns = 1 + Math.max(...graph.nodes.map(node => node.column))
  const between = width < 700 ? BOX.between / 2 : BOX.between
  const fitting = (width - 4 - (columns - 1) * between) / columns
  const box = { ...BOX, width: Math.min(BOX.wide, Math.max(BOX.narrow, fitting)) }
  const wide = Math.max(width - 4, columns * box.width + (columns - 1) * between)
  const height = arrange(columns, column => 1 + (columns > 1 ? column * (wide - 2 - box.width) / (columns - 1) : 0))
  const lines = graph.edges.map(edge => {
    const [x1, y1, y2] = [edge.from.x + box.width, edge.from.y + box.height / 2, edge.to.y + box.height / 2]
    const back = edge.to.column <= edge.from.column
    const x2 = back ? edge.to.x + box.width : edge.to.x
    const bend = back ? 60 : (x2 - x1) / 2
    const path = `M${x1},${y1} C${x1 + bend},${y1} ${back ? x2 + bend : x2 - bend},${y2} ${x2},${y2}`
    edge.line = svg('path', { class: 'line', d: path })
    return edge.shape = svg('g', { class: 'edge', tabindex: 0, role: 'button', 'aria-describedby': 'map-detail', 'data-key': edge.key, onfocus: () => choose(edge), onpointerenter: () => choose(edge), onclick: () => choose(edge) },
      svg('path', { class: 'hit', d: path }), edge.line)
  })
  const boxes = graph.nodes.map(node => {
    const about = svg('text', { x: 12, y: 34, class: 'muted' })
    node.about = about
    const open = () => { if (node.group) { unfolded.add(node.key); draw() } }
    return node.shape = svg('g', { class: `node ${node.members[0].kind}${lostClass(node.members)}${node.group ? ' group' : ''}`,
      transform: `translate(${node.x},${node.y})`, tabindex: 0, role: 'button', 'aria-describedby': 'map-detail', 'data-key': node.key, onfocus: () => choose(node), onpointerenter: () => choose(node),
      onclick: open, onkeydown: event => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); open() } } },
    svg('rect', { width: box.width, height: box.height, rx: 6 }), svg('text', { x: 12, y: 18 }, short(title(node), Math.floor((box.width - 20) / 8))), about)
  })
  at('graph').replaceChildren(svg('svg', { width: wide, height, viewBox: `0 0 ${wide} ${height}` }, ...lines, ...boxes))
  shown(focused)
}

// A list of each box with the lines that begin there, instead of a drawing that would not fit.
function list() {
  const boxes = graph.nodes.filter(node => graph.edges.some(edge => edge.from === node) || !graph.edges.some(edge => edge.to === node))
  at('graph').replaceChildren(element('ul', { class: 'map-list' }, ...boxes.map(node => {
    node.about = element('span', { class: 'muted' })
    node.shape = element('button', { type: 'button', class: `node ${node.members[0].kind}${lostClass(node.members)}`, 'aria-describedby': 'map-detail',
      'data-key': node.key, onfocus: () => choose(node), onclick: () => { if (node.group) { unfolded.add(node.key); draw() } } }, name(title(node)), ' ', node.about)
    return element('li', {}, node.shape, element('ul', {}, ...graph.edges.filter(edge => edge.from === node).map(edge => {
      edge.about = element('span', { class: 'muted' })
      edge.shape = element('button', { type: 'button', class: 'edge', 'aria-describedby': 'map-detail', 'data-key': edge.key, onfocus: () => choose(edge),
        onclick: () => { if (edge.to.group) { unfolded.add(edge.to.key); draw() } else choose(edge) } }, '→ ', name(title(edge.to)), ' ', edge.about)
      return element('li', {}, edge.shape)
    })))
  })))
}

function shown(focused) {
  measure()
  if (focused) [...at('graph').querySelectorAll('[data-key]')].find(shape => shape.dataset.key === focused)?.focus()
  if (!chosen || ![...graph.nodes, ...graph.edges].includes(chosen)) choose([...graph.nodes, ...graph.edges].find(part => part.key === chosen?.key) ?? graph.nodes[0])
}

// Each exchange is placed next to its own destinations, so that few lines cross. Returns the height.
function arrange(columns, x) {
  let slots = 0
  const visit = node => {
    node.slot = -1
    const targets = graph.edges.filter(edge => edge.from === node).map(edge => edge.to)
    const leaves = targets.filter(target => target.slot === undefined && target.column === columns - 1)
    for (const leaf of leaves) leaf.slot = slots++
    const deeper = targets.filter(target => target.slot === undefined)
    deeper.forEach(visit)
    const own = leaves.length ? leaves : deeper
    node.slot = own.length ? own.reduce((sum, target) => sum + target.slot, 0) / own.length : slots++
  }
  for (const node of graph.nodes) if (node.slot === undefined) visit(node)
  let height = 0
  for (let column = 0; column < columns; column++) {
    let free = BOX.gap
    for (const node of graph.nodes.filter(candidate => candidate.column === column).sort((left, right) => left.slot - right.slot)) {
      node.x = x(column)
      node.y = Math.max(free, BOX.gap + node.slot * (BOX.height + BOX.gap))
      free = node.y + BOX.height + BOX.gap
    }
    height = Math.max(height, free)
  }
  return height
}

function title(node) {
  if (node.key === REST) return `${whole(node.members.length)} more`
  return node.group ? `${node.key.slice(node.key.indexOf(' ') + 1).replace(/…$/, '*')} (${whole(node.members.length)})` : node.members[0].name
}

function numbersOf(links) {
  const counts = links.filter(link => link.binding).map(link => numbers('bindings', link.vhost, link.from, link.binding.binding))
  return { known: counts.some(Boolean), total: counts.reduce((sum, row) => sum + (row?.total ?? 0), 0),
    speed: counts.reduce((sum, row) => sum + (row?.per_second ?? 0), 0) }
}

// A group is drawn as missing only if all of it is.
const lostClass = members => !members.some(member => member.missing) ? '' : members.every(member => member.missing) ? ' missing' : ' partial'

// Rates change every two seconds; the boxes do not change.
function measure() {
  for (const edge of graph.edges) {
    const { known, total, speed } = numbersOf(edge.links)
    const targets = edge.links.map(link => edge.to.members.find(member => member.name === link.to?.name) ?? {})
    const activity = speed ? 'active' : !known ? 'unknown' : total ? 'idle' : 'unused'
    edge.shape?.setAttribute('class', `edge ${activity}${lostClass(targets)}`)
    edge.about?.replaceChildren(known ? `${rate(speed)}/s` : 'not counted', ...(lostClass(targets) ? [' ', badge('missing', 'bad')] : []))
    if (edge.line) edge.line.style.strokeWidth = speed ? Math.min(12, 2 + 2.2 * Math.log10(1 + speed)) : 1.5
    edge.shape?.setAttribute('aria-label', `${visible(title(edge.from))} to ${visible(title(edge.to))}: ${count(edge.links.length, 'binding')}, ${rate(speed)} matches per second`)
  }
  for (const node of graph.nodes) {
    const into = graph.edges.filter(edge => edge.to === node).flatMap(edge => edge.links)
    const ruled = node.members.filter(member => member.exchange)
    const published = [...state.traffic?.exchanges.values() ?? []].filter(row => row.vhost === graph.vhost && ruled.some(member => member.name === row.exchange))
    const speed = numbersOf(into).speed + published.reduce((sum, row) => sum + (row.per_second ?? 0), 0)
    const counted = into.some(link => link.binding) || (published.length > 0 && !into.some(link => link.alternate))
    const lost = node.members.filter(member => member.missing).length
    const [first] = node.members
    const link = first.kind === 'broker' && state.status?.remotes.find(remote => remote.broker === first.name)
    const kind = node.group ? `${first.kind}s, select to show` : first.kind === 'addresses' ? count(first.rules.length, 'rule')
      : first.outside ? 'exchange, not evaluated' : link ? `broker, ${link.connected ? 'connected' : 'not connected'}` : first.kind
    node.about?.replaceChildren(lost ? `${node.group ? `${lost} of ${node.members.length} ` : ''}missing` : kind, ...(counted ? [` · ${rate(speed)}/s`] : []))
    node.shape?.setAttribute('aria-label', `${kind} ${visible(title(node))}${lost ? ', missing' : ''}${counted ? `, ${rate(speed)} per second` : ''}`)
  }
  if (chosen) detail()
}

function choose(part) {
  chosen = part
  for (const item of [...graph.nodes, ...graph.edges]) {
    item.shape?.classList.toggle('chosen', item === part || item.from === part || item.to === part)
  }
  detail()
}

function detail() {
  const node = chosen.members ? chosen : null
  const links = node ? graph.edges.filter(edge => edge.from === node || edge.to === node).flatMap(edge => edge.links) : chosen.links
  const { total, speed } = numbersOf(links)
  const bound = links.filter(link => link.binding)
  const heading = node ? [name(title(node))] : [name(title(chosen.from)), ' → ', name(title(chosen.to))]
  const rows = bound.map(link => ({ ...numbers('bindings', link.vhost, link.from, link.binding.binding), ...link }))
    .sort((left, right) => (right.per_second ?? 0) - (left.per_second ?? 0) || (right.total ?? 0) - (left.total ?? 0))
  const only = node && !node.group ? node.members[0] : null
  const texts = [...(only?.exchange ? [`${only.exchange.type}, delivery ${only.exchange.delivery}${only.exchange.unmatched ? ', unmatched messages are passed on' : ''}`] : []),
    ...(only?.address ? [`broker at ${only.address}`] : []), ...(only?.outside ? ['exchange on the broker, not evaluated by the sidecar'] : []),
    ...links.filter(link => link.alternate).map(link => `${link.to.name} is the alternate exchange of ${link.from}`)]
  const lost = (node ? node.members : chosen.to.members).filter(member => member.missing)
  at('map-detail').replaceChildren(element('h3', {}, ...heading),
    ...(bound.length ? [element('p', {}, element('b', {}, `${rate(speed)}/s`), ` matches now, ${whole(total)} in total, ${count(bound.length, 'binding')}`)] : []),
    ...texts.map(text => element('p', { class: 'muted' }, name(text))),
    ...lost.slice(0, LISTED).map(member => element('p', { class: 'note bad' }, badge('missing', 'bad'), ' ', name(member.name), ': ', name(member.missing))),
    ...(only?.rules ?? links.filter(link => link.rule).map(link => link.rule)).slice(0, LISTED).map(rule => element('p', {}, name(rule.pattern), ' → ', name(rule.translation))),
    ...(rows.length ? [element('ul', { class: 'bindings' }, ...rows.slice(0, LISTED).map(row => element('li', {},
      element('strong', {}, name(row.binding.binding)), element('span', { class: 'muted' }, ` → ${row.to.type} `, name(row.to.name)),
      element('p', {}, `${rate(row.per_second)}/s, ${row.total === undefined ? 'not counted separately' : `${whole(row.total)} in total`}`,
        ...(row.total === 0 ? [' ', badge('no match yet', 'warn')] : [])), conditions(row.binding))))] : []),
    ...(rows.length > LISTED ? [element('p', { class: 'muted' }, `And ${whole(rows.length - LISTED)} more.`)] : []))
}

function conditions(binding) {
  const entries = [...(binding.routing_key ? [['routing key', binding.routing_key]] : []), ...Object.entries(binding.conditions)]
  const effects = Object.entries(binding.effects).filter(([key]) => key !== 'x-order' && key !== 'order')
  if (!entries.length && !effects.length) return element('p', { class: 'muted' }, 'every message')
  return element('ul', { class: 'conditions' }, ...[...entries, ...effects].map(([key, value]) => element('li', {}, name(`${key}: ${JSON.stringify(value)}`))),
    ...(entries.length > 1 ? [element('li', { class: 'muted' }, `match ${binding.match}`)] : []))
}

export function start() {
  at('map-vhost').addEventListener('change', draw)
  at('map-filter').addEventListener('input', draw)
  at('map-fold').addEventListener('click', () => { unfolded = new Set(); draw() })
  addEventListener('resize', () => { if (routes && at('graph').clientWidth) draw() })
}
