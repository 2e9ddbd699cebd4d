// Rules: the active rules files, with matches and warnings at their lines, and the differences from the files on disk.

import { at, badge, count, element, name, rate, visible, whole } from './dom.js'
import { json, numbers, state } from './feed.js'

export const topics = ['status', 'traffic']
let shown = ''
let loading = false
let margins = []
const REFRESH_SECONDS = 4
let refreshed = 0

export async function show() {
  margin()
  outdated()
  const version = state.status?.rules
  if (version && shown === version && !loading) refresh()
  if (!version || shown === version || loading) return
  loading = true
  try {
    const [rules, notes, changes] = await Promise.all(['api/rules', 'api/rules/notes', 'api/rules/changes'].map(page =>
      json(page).catch(error => ({ failure: error.message }))))
    if (rules.failure) throw new Error(rules.failure)
    margins = []
    at('files').replaceChildren(...rules.files.map(file => written(file, notes)))
    differences(changes)
    margin()
    shown = version
  } catch (error) {
    at('files').replaceChildren(element('p', { class: 'note bad' }, visible(error.message)))
  } finally {
    loading = false
  }
}

function margin() {
  for (const { keys, total, speed } of margins) {
    const counts = keys.map(key => numbers('bindings', ...key)).filter(Boolean)
    total.textContent = counts.length ? whole(counts.reduce((sum, row) => sum + row.total, 0)) : keys.length ? '–' : ''
    const sum = counts.reduce((all, row) => all + (row.per_second ?? 0), 0)
    speed.textContent = sum ? `${rate(sum)}/s` : ''
    total.parentElement.classList.toggle('unused', counts.length > 0 && counts.every(row => !row.total))
  }
}

function written(file, notes) {
  const at_line = new Map()
  for (const binding of notes.bindings ?? []) {
    if (binding.file === file.name) at_line.set(binding.line, [...(at_line.get(binding.line) ?? []), [binding.vhost, binding.exchange, binding.binding]])
  }
  const warnings = (notes.warnings ?? []).filter(note => note.file === file.name)
  const lines = file.text.replace(/\n$/, '').split('\n').flatMap((text, index) => {
    const keys = at_line.get(index + 1) ?? []
    const [total, speed] = [element('span', { class: 'total' }), element('span', { class: 'speed' })]
    if (keys.length) margins.push({ keys, total, speed })
    return [element('li', {}, total, speed, element('span', { class: 'line' }, String(index + 1)), element('code', {}, ...colored(text))),
      ...warnings.filter(note => note.line === index + 1).map(warning)]
  })
  return element('div', { class: 'card' },
    element('div', { class: 'head' }, element('h3', {}, name(file.name)),
      ...(notes.failure ? [] : warnings.length ? [badge(count(warnings.length, 'warning'), 'warn')] : [badge('no warning', 'good')])),
    ...(notes.failure ? [element('p', { class: 'note bad' }, visible(notes.failure))] : []),
    ...warnings.filter(note => !note.line).map(note => element('p', { class: 'note warn' }, name(note.message))),
    element('div', { class: 'file', tabIndex: 0, 'aria-label': file.name, role: 'region' },
      element('p', { class: 'columns-of-file', 'aria-hidden': 'true' }, element('span', {}, 'matches'), element('span', {}, 'now')), element('ol', {}, ...lines)))
}

const warning = note => element('li', { class: 'warning' }, element('span', {}, 'warning'), element('code', {},
  ...(note.key ? [name(note.key), ': '] : []), name(note.message)))

// Highlights YAML keys and comments, as far as they can be recognized in a single line.
function colored(text) {
  const parts = /^(\s*(?:- )*)(?:("[^"]*"|'[^']*'|[^\s#:"'{[][^:#]*)(:)(?=\s|$))?((?:"[^"]*"|'[^']*'|[^#"']|(?<=\S)#)*)(.*)$/.exec(text)
  if (!parts) return [name(text)]
  const [, indent, key, colon, rest, comment] = parts
  return [indent, ...(key ? [element('b', {}, name(key)), colon] : []), ...(rest ? [name(rest)] : []), ...(comment ? [element('i', {}, name(comment))] : [])]
}

// The virtual hosts whose files were refused by the last reload.
function outdated() {
  const reload = state.status?.last_reload
  at('outdated').replaceChildren(...(reload?.outdated.length ? [element('div', { class: 'note bad' },
    element('p', {}, `The last reload failed. The previous rules are active for ${count(reload.outdated.length, 'virtual host')}: `, name(reload.outdated.join(', '))),
    ...reload.errors.map(text => element('p', {}, name(text))))] : []))
}

let compared = ''

function differences(changes) {
  const text = JSON.stringify(changes)
  if (text === compared) return // an opened list stays open
  compared = text
  if (changes.failure) {
    at('changes').replaceChildren(element('p', { class: 'note bad' }, 'The files on disk can’t be read: ', visible(changes.failure)))
    return
  }
  at('changes').replaceChildren(...(changes.same ? [] : [element('details', { class: 'card', open: changes.differences.length > 0 },
    element('summary', {}, badge('differs', 'warn'), ' The files on disk differ from the active files', changes.differences.length ? '' : ' in passwords, line endings or order'),
    ...changes.differences.map(change => element('div', {}, element('h3', {}, name(change.file)), element('pre', { class: 'diff', tabIndex: 0 },
      ...change.diff.map(line => element('span', { class: { '+': 'added', '-': 'removed', '@': 'muted' }[line[0]] ?? '' }, name(line), '\n'))))))]))
}

// The files on disk may change without a reload, or with a reload that is refused.
function refresh() {
  if (Date.now() - refreshed < 1000 * REFRESH_SECONDS) return
  refreshed = Date.now()
  json('api/rules/changes').catch(error => ({ failure: error.message })).then(differences)
}

export function start() {}
