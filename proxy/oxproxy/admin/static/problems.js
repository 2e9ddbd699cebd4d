// What is wrong, worst first: shown in the header, in the first tile and below the tiles.

import { count } from './dom.js'

// Maximum number of names in a title.
const MOST_NAMES = 2

// The lists of findings in /status for a virtual host: title of one finding, title of several findings in the singular
// and in the plural, whether the finding prevents deliveries, and texts.
export const FINDINGS = [
  ['missing', 'destination missing', 'destinations missing', true, vhost => Object.entries(vhost.missing).map(([destination, why]) => `${destination}: ${why}`)],
  ['conflict', 'conflict', 'conflicts', true, vhost => vhost.conflicts],
  ['refused by the broker', 'request refused by the broker', 'requests refused by the broker', true, vhost => vhost.failing],
  ['not listed', 'list not read', 'lists not read', false, vhost => vhost.inventory_failures],
  ['bypass', 'bypass', 'bypasses', false, vhost => vhost.bypasses],
  ['unfit carrier', 'unfit carrier', 'unfit carriers', false, vhost => vhost.unfit_carriers],
  ['foreign bindings on', 'exchange with foreign bindings', 'exchanges with foreign bindings', false, vhost => Object.keys(vhost.foreign)],
  ['unsigned bindings of', 'exchange with unsigned bindings', 'exchanges with unsigned bindings', false, vhost => Object.keys(vhost.unsigned)],
  ['stale on', 'exchange with stale tokens', 'exchanges with stale tokens', false, vhost => Object.entries(vhost.stale_tokens).map(([carrier, number]) =>
    `${carrier}: ${count(number, 'token')} of secrets that are not listed; no message uses them, and oxproxy cleanup --stale removes them`)],
]

// Returns the title of a refused reload, which names the virtual hosts that keep their previous rules if others do not.
function refused({ outdated }, vhosts) {
  const partly = vhosts.some(({ vhost }) => !outdated.includes(vhost))
  return partly && outdated.length <= MOST_NAMES ? `reload refused for ${outdated.join(', ')}` : partly
    ? `reload refused for ${count(outdated.length, 'virtual host')}` : 'reload refused'
}

// Returns groups of problems: short title, severity (bad or warn) and texts.
export function problems(status) {
  const away = status.vhosts.filter(vhost => !vhost.connected)
  const remotes = status.remotes.filter(remote => remote.error && !remote.connected)
  const reload = status.last_reload
  const groups = [
    ['not ready', 'bad', status.not_ready.map(text => `Not ready: ${text}`)],
    ['broker unreachable', 'bad', away.map(vhost => `Control connection to virtual host ${vhost.vhost}: ${vhost.fault || 'not connected'}`)],
    [reload && refused(reload, status.vhosts), 'bad', (reload?.errors ?? []).map(text => `Last reload failed: ${text}`)],
    ['audit log failing', 'bad', status.audit_failure ? [`Audit log: ${status.audit_failure}`] : []],
    [`${count(remotes.length, 'other broker')} unreachable`, 'bad', remotes.map(remote => `Broker ${remote.broker}: ${remote.error}`)],
    ...FINDINGS.map(([kind, one, several, serious, texts]) => {
      const found = status.vhosts.flatMap(vhost => texts(vhost).map(text =>
        `${status.vhosts.length > 1 ? `Virtual host ${vhost.vhost}: ` : ''}${kind} ${text}`))
      return [count(found.length, one, several), serious ? 'bad' : 'warn', found]
    }),
    ['degraded', 'warn', status.degraded.map(text => `Degraded: ${text}`)],
    ['restart required', 'warn', reload?.restart.length ? [`Changed settings that require a restart: ${reload.restart.join(', ')}`] : []],
  ].filter(([, , texts]) => texts.length)
  return [...groups.filter(([, severity]) => severity === 'bad'), ...groups.filter(([, severity]) => severity !== 'bad')]
}
