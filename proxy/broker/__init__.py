"""The control plane: what is declared on RabbitMQ and what exists there. Owns aio_pika, aiormq and the HTTP client.

| question | open |
|---|---|
| what other packages call; readiness and status of the control plane | `topology` |
| how one virtual host is kept in step with its rules | `reconcile` |
| how what clients declared is stored, read back and shared between sidecars | `declared` |
| requests to the management API, and what its rows mean | `management_api` |
| the AMQP connection of the control user; credentials, deadlines and limits of the control plane | `connection` |
| the AMQP methods it sends, and the meaning of a refusal | `methods` |
| background tasks that fail and are restarted | `task_supervisor` |
| destinations that the address table names at other brokers | `remote_observer` |
| `oxproxy adopt`: signing bindings that carry no current signature | `adoption` |
| `oxproxy cleanup`: removing what sidecars left on a broker | `cleanup` |
"""
