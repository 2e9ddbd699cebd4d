"""The control plane: what is declared on RabbitMQ and what exists there. Owner of aio_pika, aiormq and the HTTP client.

`topology` is what other rooms call; `vhost_topology` keeps one virtual host in step: `survey` looks (through
`inventory`, into `presence`), `repair` decides what lacks (from `needs`), `declarer` declares it (`declarations`, over
`connection` and `login`), `demand` binds what publishes ask for, `changeover` tells old rules' tokens from new ones,
`checks` finds what contradicts the rules. `settings` has the limits.
"""
