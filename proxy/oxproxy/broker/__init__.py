"""The control plane, which declares exchanges and queues on RabbitMQ, manages bindings, and reads the inventory.

Only this package uses aio_pika, aiormq and aiohttp's client.

| subject | module |
|---|---|
| interface for other packages; readiness and status of the control plane | `topology` |
| reconciling one virtual host with its rules | `reconcile` |
| storing client declarations, reading them back and sharing them between sidecars | `declared` |
| requests to the management API, and parsing of responses | `management_api` |
| the control user's AMQP connection; credentials, deadlines and limits for the control plane | `connection` |
| the versions of RabbitMQ that are supported, and what follows from a version | `versions` |
| AMQP methods sent by the control plane, and explanations of refusals | `methods` |
| long work in steps, between which other tasks run | `steps` |
| restarting failed background tasks | `task_supervisor` |
| checking the address table's destinations on other brokers | `remote_observer` |
| `oxproxy cleanup`: removing objects that sidecars left on a broker | `cleanup` |
"""
