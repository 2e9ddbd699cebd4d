"""The AMQP 0-9-1 codec: bytes in, bytes out, no state of a connection.

| question | module |
|---|---|
| frames: layout, size limits, taking whole frames out of a stream | `frames` |
| methods: numbers, layouts, replies, reading and building any method | `methods` |
| the methods that the proxy looks into, as named tuples; those that it sends itself; reply texts | `method_frames` |
| properties of a content header, read in place | `properties` |
| field tables: selecting, cutting, decoding and encoding entries | `tables` |
"""
