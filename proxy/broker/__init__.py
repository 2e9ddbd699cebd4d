"""The control plane: what is declared on RabbitMQ and what exists there. Owner of aio_pika and the HTTP client."""
