"""What clients declared over AMQP: exchanges and bindings that live on the broker, not in a rules file.

| question | open |
|---|---|
| reading listings into the shared state, and what new rules inherit | `store` |
| the file that keeps what the broker can't keep | `snapshot` |
| telling other sidecars that an exchange has changed | `announcements` |
"""
