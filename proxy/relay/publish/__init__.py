"""From the producer to the broker: the publish path, and every other frame of the producer.

| question | module |
|---|---|
| the pass over the read buffer, from incoming to outgoing bytes of a publish | `publish_pass` |
| publishes handled frame by frame, and the slow path: waiting, splitting, other brokers, refusals | `publish_frames` |
| each other method of the producer | `producer_frames` |
| facts that the rules of an address need, and the cache of decisions | `plan` |
| outgoing exchange, routing key and BCC of a decision | `outgoing` |
| publishes that are sent as several | `split_publish` |
| observing publishes | `tap` |
"""
