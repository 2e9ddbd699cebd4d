"""From the producer to the broker: the publish path, and every other frame of the producer.

| question | open |
|---|---|
| the pass over the read buffer | `publishing` |
| publishes that are split over reads, wait, are large or refused; each other method | `producer_frames` |
| the outgoing form of a publish, and its caches | `plan` |
| the same for publishes that the address table translates or a tap observes | `address_plan` |
| the exchange, routing key and BCC that a decision leaves with | `outgoing` |
| publishes that leave as several | `split_publish` |
| observing publishes | `tap` |
| what is remembered of equal bytes | `known_heads`, `known_publishes`, `shapes` |
"""
