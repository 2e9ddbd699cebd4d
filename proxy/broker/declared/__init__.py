"""Client declarations over AMQP, which are exchanges and bindings that are stored on the broker, not in a rules file.

| question | module |
|---|---|
| applying listings to the shared state, and carrying declarations over to new rules | `store` |
| the file for state that the broker can't store | `snapshot` |
| announcing changes of exchanges to other sidecars | `announcements` |
"""
