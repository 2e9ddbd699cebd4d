"""From the producer to the broker: the publish path, and every other frame of the producer.

| question | open |
|---|---|
| the pass over the read buffer, from the bytes of a publish to those that leave | `publish_pass` |
| publishes frame by frame, and those that wait, leave as several, go elsewhere or are refused | `publish_frames` |
| each other method of the producer | `producer_frames` |
| what is known of an address: which facts its rules look at, and the cache of decisions | `plan` |
| the exchange, routing key and BCC that a decision leaves with | `outgoing` |
| publishes that leave as several | `split_publish` |
| observing publishes | `tap` |
"""
