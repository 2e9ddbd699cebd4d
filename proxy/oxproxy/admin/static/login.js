// The token for requests. It is asked for once and kept until the tab is closed, and never part of a URL.

import { at } from './dom.js'

const KEY = 'oxproxy-token'

export function authorization() {
  const token = sessionStorage.getItem(KEY)
  return token ? { Authorization: `Bearer ${token}` } : {}
}

// Asks for a token, after a response with the status 401. The first response does not mean that a token was wrong.
export function ask(reason) {
  const wrong = sessionStorage.getItem(KEY) !== null
  sessionStorage.removeItem(KEY)
  if (wrong) at('login-fault').textContent = reason
  at('login-fault').hidden = !at('login-fault').textContent
  if (!at('login').hidden) return
  at('login').hidden = false
  document.querySelector('main').hidden = true
  at('login').elements.token.focus()
}

export function start(again) {
  at('login').addEventListener('submit', event => {
    event.preventDefault()
    const field = at('login').elements.token
    sessionStorage.setItem(KEY, field.value.trim())
    field.value = ''
    at('login').hidden = true
    at('login-fault').textContent = ''
    document.querySelector('main').hidden = false
    again()
  })
}
