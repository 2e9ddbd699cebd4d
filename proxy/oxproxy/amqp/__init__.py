"""The AMQP 0-9-1 codec. It converts bytes and has no connection state.

| subject | module |
|---|---|
| frames: layout, size limits, extracting whole frames from a stream | `frames` |
| methods: numbers, layouts, replies, reading and building any method | `methods` |
| methods that the sidecar reads, as named tuples; methods that it sends itself; reply texts | `method_frames` |
| properties of a content header, read in place | `properties` |
| field tables: selecting, removing, decoding and encoding entries | `tables` |
"""
