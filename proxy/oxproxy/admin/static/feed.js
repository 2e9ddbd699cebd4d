// Requests to the sidecar: documented pages, and the stream of events at api/live.

import { ask, authorization } from './login.js'

export const state = { status: null, traffic: null, publishes: [], shadow: undefined }
const AGAIN = 3000
let source = null
let followed = ''
let timer = 0

async function request(page, options) {
  const answer = await fetch(page, { cache: 'no-store', ...options, headers: authorization() })
  if (answer.ok) return answer
  const text = await answer.text()
  if (answer.status === 401) ask(text)
  if (answer.status === 422) throw new Error(JSON.parse(text).errors.join('\n'))
  throw Object.assign(new Error(`${page}: ${answer.status} ${text}`), { status: answer.status, text })
}

export const json = async (page, options) => (await request(page, options)).json()

const TAKE = {
  status(data) { state.status = data },
  shadow(data) { state.shadow = data },
  recent(data) {
    const known = new Set(state.publishes.map(publish => `${publish.number} ${publish.at}`))
    const fresh = data.publishes.filter(publish => !known.has(`${publish.number} ${publish.at}`))
    state.publishes = [...fresh.reverse(), ...state.publishes].slice(0, 200)
  },
  traffic(data) {
    const before = data.complete || state.traffic?.rules !== data.rules ? null : state.traffic
    const lists = {}
    for (const [list, labels] of Object.entries({ exchanges: ['vhost', 'exchange', 'outcome'],
      bindings: ['vhost', 'exchange', 'binding'], destinations: ['vhost', 'destination'] })) {
      lists[list] = before?.[list] ?? new Map()
      for (const row of data[list]) lists[list].set(JSON.stringify(labels.map(label => row[label])), row)
    }
    const points = data.history?.points ?? [...(before?.points ?? state.traffic?.points ?? []), ...(data.point ? [data.point] : [])]
    state.traffic = { ...data, ...lists, series: data.history?.series ?? state.traffic?.series ?? [],
      points: points.filter(point => point[0] > data.at - 900) }
  },
}

// Only changed rates are sent. Bindings beyond the limit metrics.bindings have no rates.
export const numbers = (list, ...labels) => state.traffic?.[list].get(JSON.stringify(labels))

export function follow(topics, changed, fault) {
  const wanted = document.hidden ? '' : topics.join(',')
  if (wanted === followed && (source || !wanted)) return
  followed = wanted
  clearTimeout(timer)
  source?.abort()
  source = null
  if (wanted) read(source = new AbortController(), topics, changed, fault)
}

export function unfollow() {
  followed = ''
  clearTimeout(timer)
  source?.abort()
  source = null
}

// An EventSource can't send the token.
async function read(stream, topics, changed, fault) {
  let failure = null
  try {
    const answer = await request(`api/live?topics=${topics.join(',')}`, { signal: stream.signal })
    for await (const [topic, data] of events(answer.body)) {
      if (stream.signal.aborted) return
      TAKE[topic](JSON.parse(data))
      fault('')
      changed(topic)
    }
  } catch (error) {
    failure = error
  }
  if (stream.signal.aborted || failure?.status === 401) return
  if (failure?.status === 503) fault('The limit on open event streams has been reached. Retrying.')
  else if (failure?.status) fault(failure.text)
  else await request('livez').then(() => fault(''), () => fault('The sidecar does not respond. The data shown is from its last response. Retrying.'))
  if (stream.signal.aborted) return
  timer = setTimeout(() => {
    source = null
    follow(topics, changed, fault)
  }, AGAIN)
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader()
  let text = ''
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    const blocks = (text + value).split('\n\n')
    text = blocks.pop()
    for (const block of blocks) {
      const [, topic, data] = /^event: (.*)\ndata: (.*)$/.exec(block) ?? []
      if (topic) yield [topic, data]
    }
  }
}
