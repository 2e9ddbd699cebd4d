// Requests to the sidecar: documented pages, and the stream of events at api/live.

export const state = { status: null, traffic: null, publishes: [], shadow: undefined }
const AGAIN = 3000
let source = null
let followed = ''
let timer = 0

async function get(page, options) {
  const answer = await fetch(page, { cache: 'no-store', ...options })
  const text = await answer.text()
  if (answer.status === 422) throw new Error(JSON.parse(text).errors.join('\n'))
  if (!answer.ok) throw new Error(`${page}: ${answer.status} ${text}`)
  return text
}

export const json = async (page, options) => JSON.parse(await get(page, options))

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
  source?.close()
  source = null
  if (!wanted) return
  const stream = source = new EventSource(`api/live?topics=${wanted}`)
  for (const topic of topics) {
    stream.addEventListener(topic, event => {
      TAKE[topic](JSON.parse(event.data))
      fault('')
      changed(topic)
    })
  }
  stream.addEventListener('error', () => {
    const closed = stream.readyState === EventSource.CLOSED
    get('livez').then(
      () => fault(closed ? 'The limit on open event streams has been reached. Retrying.' : ''),
      () => fault('The sidecar does not respond. The data shown is from its last response. Retrying.'))
    if (!closed) return
    timer = setTimeout(() => {
      source = null
      follow(topics, changed, fault)
    }, AGAIN)
  })
}
