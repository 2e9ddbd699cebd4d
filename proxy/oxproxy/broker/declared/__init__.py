"""Client declarations: exchanges and bindings that clients declare over AMQP, and that are stored on the broker.

| subject | module |
|---|---|
| applying listings to the shared state, and carrying declarations over to new rules | `store` |
| announcing changed exchanges to other sidecars | `announcements` |
"""
