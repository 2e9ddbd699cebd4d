// The console: one page with six views, which uses the documented pages of the admin address.

import { at } from './dom.js'
import { follow, state, unfollow } from './feed.js'
import * as login from './login.js'
import { problems } from './problems.js'
import * as overview from './overview.js'
import * as map from './map.js'
import * as rules from './rules.js'
import * as explain from './explain.js'
import * as recent from './recent.js'
import * as shadow from './shadow.js'

const VIEWS = { overview, map, rules, explain, recent, shadow }
const view = () => location.hash.slice(1) in VIEWS ? location.hash.slice(1) : 'overview'

function fault(text) {
  at('fault').hidden = !text
  if (at('fault').textContent !== text) at('fault').textContent = text
  document.body.classList.toggle('stale', Boolean(text))
  if (text) header()
}

function header() {
  const { status } = state
  const stale = document.body.classList.contains('stale')
  if (!status) return
  const [[title, severity] = ['ready', 'good']] = stale ? [['no response', 'bad']] : problems(status)
  at('state').className = `badge ${severity}`
  at('state').textContent = title
}

function changed(topic) {
  if (topic === 'status') header()
  VIEWS[view()].show(topic)
}

function go() {
  for (const name of Object.keys(VIEWS)) at(`view-${name}`).hidden = name !== view()
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#${view()}`) link.setAttribute('aria-current', 'page')
    else link.removeAttribute('aria-current')
  }
  document.title = `oxproxy: ${view()}`
  VIEWS[view()].show()
  follow(VIEWS[view()].topics, changed, fault)
}

for (const page of Object.values(VIEWS)) page.start()
login.start(() => {
  unfollow()
  go()
})
addEventListener('hashchange', go)
document.addEventListener('visibilitychange', go)
go()
