"""The control plane: what is declared on RabbitMQ and what exists there. Owner of aio_pika, aiormq and the HTTP client.

`topology` is what other rooms call; `discovery` finds the virtual hosts that clients declared something in;
`vhost_topology` keeps one of them in step, at its `pace`: `survey` looks (through `inventory`, which reads rows as
`listed`, into `presence` and `store`), `repair` decides what lacks (from `needs`), `declarer` declares it
(`declarations`, over `connection` and `login`), `strays` unbinds what nothing needs any more, `notices` takes what
relays say, `demand` binds what publishes ask for, `changeover` brings new rules in (`inheritance`: with what clients
declared), `checks` finds what contradicts the rules.

What clients declared: `store` has it, `binding_listings` brings listings into it, `restoring` makes it again from
bytes, `recorder` keeps it in a `snapshot`, `announcements` tells other sidecars. `status` is for operators, `settings`
has the limits.
"""
