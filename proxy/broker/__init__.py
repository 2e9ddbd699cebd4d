"""The control plane, which makes declarations on RabbitMQ and reads its inventory. Only this package uses aio_pika,
aiormq and aiohttp's client.

| question | module |
|---|---|
| interface for other packages; readiness and status of the control plane | `topology` |
| reconciling one virtual host with its rules | `reconcile` |
| storing client declarations, reading them back and sharing them between sidecars | `declared` |
| requests to the management API, and the meaning of its rows | `management_api` |
| the AMQP connection of the control user; credentials, deadlines and limits of the control plane | `connection` |
| the AMQP methods that it sends, and the meaning of a refusal | `methods` | | restarting failed background tasks |
`task_supervisor` | | checking destinations at other brokers that the address table names | `remote_observer` | |
`oxproxy adopt`: signing bindings that lack a current signature | `adoption` | | `oxproxy cleanup`: removing objects
that sidecars left on a broker | `cleanup` |
"""
