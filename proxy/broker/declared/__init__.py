"""Client declarations: exchanges and bindings that clients declare over AMQP, and that are stored on the broker.

| subject | module |
|---|---|
| applying listings to the shared state, and carrying declarations over to new rules | `store` |
| the file for state that the broker can't store | `snapshot` |
| announcing changed exchanges to other sidecars | `announcements` |
"""
