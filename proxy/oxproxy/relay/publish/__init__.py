"""Producer to broker: the publish path, and the handling of all other frames from the producer.

| subject | module |
|---|---|
| the pass over the read buffer, which turns incoming publishes into outgoing bytes | `publish_pass` |
| other frames, and the slow path of publishes: waiting, splitting, other brokers, refusals | `producer_frames` |
| splitting a publish into several publishes | `split_publish` |
"""
