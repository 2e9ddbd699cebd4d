// What is wrong, worst first: shown in the header, in the first tile and below the tiles.

import { count, whole } from './dom.js'

// The lists of findings in /status for a virtual host: title of one finding, whether it prevents deliveries, and texts.
export const FINDINGS = [
  ['missing', 'missing', true, vhost => Object.entries(vhost.missing).map(([destination, why]) => `${destination}: ${why}`)],
  ['conflict', 'conflict', true, vhost => vhost.conflicts],
  ['refused by the broker', 'request refused by the broker', true, vhost => vhost.failing],
  ['not listed', 'list not read', false, vhost => vhost.inventory_failures],
  ['bypass', 'bypass', false, vhost => vhost.bypasses],
  ['unfit carrier', 'unfit carrier', false, vhost => vhost.unfit_carriers],
  ['foreign bindings on', 'exchange with foreign bindings', false, vhost => Object.keys(vhost.foreign)],
  ['unsigned bindings of', 'exchange with unsigned bindings', false, vhost => Object.keys(vhost.unsigned)],
  ['stale tokens', 'exchange with stale tokens', false, vhost => Object.entries(vhost.stale_tokens).map(([carrier, number]) =>
    `${carrier}: ${whole(number)} of secrets that are not listed; no message uses them, and oxproxy cleanup --stale removes them`)],
]

// Returns groups of problems: short title, severity (bad or warn) and texts.
export function problems(status) {
  const away = status.vhosts.filter(vhost => !vhost.connected)
  const remotes = status.remotes.filter(remote => remote.error && !remote.connected)
  const reload = status.last_reload
  const groups = [
    ['not ready', 'bad', status.not_ready.map(text => `Not ready: ${text}`)],
    ['broker unreachable', 'bad', away.map(vhost => `Control connection to virtual host ${vhost.vhost}: ${vhost.fault || 'not connected'}`)],
    ['reload refused', 'bad', (reload?.errors ?? []).map(text => `Last reload failed: ${text}`)],
    ['audit log failing', 'bad', status.audit_failure ? [`Audit log: ${status.audit_failure}`] : []],
    [`${count(remotes.length, 'other broker')} unreachable`, 'bad', remotes.map(remote => `Broker ${remote.broker}: ${remote.error}`)],
    ...FINDINGS.map(([kind, one, serious, texts]) => {
      const found = status.vhosts.flatMap(vhost => texts(vhost).map(text =>
        `${status.vhosts.length > 1 ? `Virtual host ${vhost.vhost}: ` : ''}${kind} ${text}`))
      return [one === 'missing' ? `${count(found.length, 'destination')} missing` : named(found.length, one), serious ? 'bad' : 'warn', found]
    }),
    ['degraded', 'warn', status.degraded.map(text => `Degraded: ${text}`)],
    ['restart required', 'warn', reload?.restart.length ? [`Changed settings that require a restart: ${reload.restart.join(', ')}`] : []],
  ].filter(([, , texts]) => texts.length)
  return [...groups.filter(([, severity]) => severity === 'bad'), ...groups.filter(([, severity]) => severity !== 'bad')]
}

function named(number, one) {
  if (number === 1) return `1 ${one}`
  return `${whole(number)} ${one.replace(/^(conflict|bypass|unfit carrier|request|exchange|list)/, word => word === 'bypass' ? 'bypasses' : `${word}s`)}`
}
