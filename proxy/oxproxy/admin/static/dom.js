// Creates elements, and formats names and numbers. External data is always set as text, never as markup.

const SVG = 'http://www.w3.org/2000/svg'
export const at = id => document.getElementById(id)

export function element(name, options = {}, ...parts) {
  return filled(document.createElement(name), options, parts)
}

export function svg(name, options = {}, ...parts) {
  return filled(document.createElementNS(SVG, name), options, parts)
}

function filled(made, options, parts) {
  for (const [key, value] of Object.entries(options)) {
    if (key === 'class') made.setAttribute('class', value)
    else if (value === null || value === undefined) continue
    else if (key in made && key !== 'list' && made.namespaceURI !== SVG) made[key] = value
    else if (key.startsWith('on')) made[key] = value
    else made.setAttribute(key, value)
  }
  made.append(...parts)
  return made
}

// A name may have any script and direction, and must not change the direction of adjacent text.
export const visible = text => String(text).replace(/[\p{Cc}\p{Cf}]/gu, sign => `\\u{${sign.codePointAt(0).toString(16)}}`)
export const name = text => element('bdi', {}, visible(text))
export const short = (text, length) => {
  const signs = [...visible(text)]
  return signs.length > length ? `${signs.slice(0, length - 1).join('')}…` : signs.join('')
}
export const listed = names => names.flatMap((text, index) => [index ? ', ' : '', name(text)])

export const whole = number => number.toLocaleString('en')
export const rate = number => number === null || number === undefined ? '…'
  : number.toLocaleString('en', { maximumFractionDigits: number < 10 ? 2 : number < 100 ? 1 : 0 })
export const count = (number, noun, nouns = `${noun}s`) => `${whole(number)} ${number === 1 ? noun : nouns}`
export const time = seconds => new Date(seconds * 1000).toISOString().replace(/\.\d+Z/, 'Z').replace('T', ' ')

export function duration(seconds) {
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']]
  const first = Math.max(0, parts.findIndex(([size]) => seconds >= size))
  return parts.slice(first, first + 2).map(([size, unit], index) =>
    `${Math.floor((index ? seconds % parts[first][0] : seconds) / size)} ${unit}`).join(' ')
}

export function latency(seconds) {
  if (seconds === null) return '–'
  return seconds < 0.001 ? `${Math.round(seconds * 1e6)} µs` : seconds < 1
    ? `${Number((seconds * 1000).toPrecision(2))} ms` : `${Number(seconds.toPrecision(2))} s`
}

const NUMERIC = new Set(['per second', 'total', 'bytes', 'publishes', 'messages', 'queues', 'order', 'matches'])

export function table(columns, rows, none = 'None.') {
  if (!rows.length) return element('p', { class: 'muted' }, none)
  const numeric = column => NUMERIC.has(column) ? 'number' : ''
  const head = element('tr', {}, ...columns.map(column => element('th', { scope: 'col', class: numeric(column) }, column)))
  const body = rows.map(row => element('tr', {}, ...row.map((cell, index) => element(
    'td', { 'data-name': columns[index], class: numeric(columns[index]) },
    cell instanceof Node ? cell : cell === null ? '' : typeof cell === 'number' ? whole(cell) : name(cell)))))
  return element('table', {}, element('thead', {}, head), element('tbody', {}, ...body))
}

export const badge = (text, kind = '') => element('span', { class: `badge ${kind}` }, visible(text))

export function facts(list, pairs) {
  list.replaceChildren(...pairs.map(([title, text, kind = '', more = '']) => element('div', { class: kind },
    element('dt', {}, title), element('dd', {}, text instanceof Node ? text : name(text)),
    ...(more ? [element('dd', { class: 'muted' }, more instanceof Node ? more : name(more))] : []))))
}
