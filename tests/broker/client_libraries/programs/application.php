<?php
// An application that uses php-amqplib; programs.py describes its arguments and output.

require 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPBasicCancelException;
use PhpAmqpLib\Exception\AMQPExceptionInterface;
use PhpAmqpLib\Exception\AMQPProtocolChannelException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

function line(...$values): void
{
    $texts = array_map(fn($value) => is_bool($value) ? ($value ? 'true' : 'false') : (string) $value, $values);
    echo implode("\t", $texts), "\n";
}

function connect(string $url, int $heartbeat = 0): AMQPStreamConnection
{
    $parts = parse_url($url);
    $vhost = rawurldecode(substr($parts['path'], 1));
    return new AMQPStreamConnection(
        $parts['host'], $parts['port'], $parts['user'], $parts['pass'], $vhost,
        connection_timeout: 10.0, read_write_timeout: 30.0, heartbeat: $heartbeat
    );
}

function letter(string $body): AMQPMessage
{
    return new AMQPMessage($body, [
        'application_headers' => new AMQPTable(['kind' => 'letter']),
        'delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT,
    ]);
}

function confirming(AMQPStreamConnection $connection): AMQPChannel
{
    $channel = $connection->channel();
    $channel->confirm_select();
    return $channel;
}

/** Publish a message on a channel in confirm mode, and wait for the confirm. */
function publish(AMQPChannel $channel, AMQPMessage $message, string $exchange, string $key = 'k'): bool
{
    $acked = false;
    $channel->set_ack_handler(function () use (&$acked) {
        $acked = true;
    });
    $channel->basic_publish($message, $exchange, $key, true);
    $channel->wait_for_pending_acks_returns(30);
    return $acked;
}

function orders(string $url): void
{
    $connection = connect($url);
    $channel = confirming($connection);
    $channel->exchange_declare('sales', 'x-open', false, true, false);
    $channel->queue_declare('large', false, true, false, false);
    $condition = new AMQPTable(['x-?hkv>= amount' => 1000]);
    $channel->queue_bind('large', 'sales', '', false, $condition);
    $channel->set_return_listener(
        function ($code, $text, $exchange, $key, AMQPMessage $message) {
            line('returned', $code, $exchange, $key, $message->getBody());
        }
    );
    $order = function (int $amount) use ($channel) {
        $message = new AMQPMessage((string) $amount, ['application_headers' => new AMQPTable(['amount' => $amount])]);
        line('confirmed', $amount, publish($channel, $message, 'sales'));
    };
    $order(2500);
    $order(10);

    $channel->basic_qos(0, 1, false);
    $requeue = true;
    $channel->basic_consume(
        'large', 'shop', false, false, false, false,
        function (AMQPMessage $message) use (&$requeue) {
            $amount = $message->get('application_headers')->getNativeData()['amount'];
            line('delivered', $message->getExchange(), $message->getRoutingKey(), $amount, $message->isRedelivered());
            if ($requeue) {
                $message->nack(true);
                $requeue = false;
            } else {
                $message->ack();
                $message->getChannel()->basic_cancel('shop');
            }
        }
    );
    while ($channel->is_consuming()) {
        $channel->wait(null, false, 30);
    }
    line('got', $channel->basic_get('large', true) !== null);

    $channel->queue_unbind('large', 'sales', '', $condition);
    $order(2500);
    $channel->queue_delete('large');
    $channel->exchange_delete('sales');
    $connection->close();
}

function types(string $url, string $exchange, string $key): void
{
    $connection = connect($url);
    $channel = confirming($connection);
    $headers = new AMQPTable([
        'string' => '2000',
        'integer' => 2000,
        'big' => 1 << 40,
        'float' => 2000.5,
        'boolean' => true,
        'null' => null,
        'list' => [1, 'a'],
        'table' => ['a' => 1],
        'timestamp' => new DateTime('@1800000000'),
        'decimal' => new PhpAmqpLib\Wire\AMQPDecimal(1234, 2),
    ]);
    $headers->set('bytes', "\x00\xff", AMQPTable::T_BYTES);
    $headers->set('small', 5, AMQPTable::T_INT_SHORTSHORT);
    $headers->set('short', 300, AMQPTable::T_INT_SHORT);
    $properties = [
        'application_headers' => $headers,
        'content_type' => 'text/plain',
        'content_encoding' => 'utf-8',
        'delivery_mode' => 2,
        'priority' => 3,
        'correlation_id' => 'c',
        'reply_to' => 'r',
        'expiration' => '600000',
        'message_id' => 'm',
        'timestamp' => 1800000000,
        'type' => 't',
        'user_id' => 'guest',
        'app_id' => 'a',
    ];
    $returned = 0;
    $channel->set_return_listener(function () use (&$returned) {
        $returned++;
    });
    line('confirmed', publish($channel, new AMQPMessage('typed', $properties), $exchange, $key), $returned);
    $connection->close();
}

function many(string $url, string $exchange): void
{
    $connection = connect($url);
    $channel = $connection->channel();
    $acked = 0;
    $channel->set_ack_handler(function () use (&$acked) {
        $acked++;
    });
    $channel->confirm_select();
    foreach (range(0, 499) as $number) {
        $channel->batch_basic_publish(letter((string) $number), $exchange, 'k');
    }
    $channel->publish_batch();
    $channel->wait_for_pending_acks(30);
    line('acked', $acked);
    $connection->close();
}

function large(string $url, string $exchange): void
{
    $connection = connect($url);
    $channel = confirming($connection);
    $body = '';
    foreach (range(0, (1 << 20) - 1) as $index) {
        $body .= chr($index % 251);
    }
    line('acked', publish($channel, letter($body), $exchange));
    $received = null;
    $channel->basic_consume('inbox', '', false, true, false, false, function (AMQPMessage $message) use (&$received) {
        $received = $message->getBody();
    });
    while ($received === null) {
        $channel->wait(null, false, 30);
    }
    line('received', strlen($received), hash('sha256', $received));
    $connection->close();
}

function closes(string $url, string $exchange): void
{
    $connection = connect($url);
    $refused = function (string $name, callable $use) use ($connection) {
        $channel = confirming($connection);
        try {
            $use($channel);
        } catch (AMQPProtocolChannelException $refusal) {
            line($name, $refusal->amqp_reply_code, !$connection->isConnected());
        }
    };
    $refused('missing', fn($channel) => $channel->queue_declare('missing', true));
    $refused('reserved', fn($channel) => publish($channel, letter(''), $exchange, 'x.o.p.e.n.x.q'));
    $invalid = new AMQPTable(['x-?hkv>= amount' => 'much']);
    $refused('invalid', fn($channel) => $channel->queue_bind('inbox', $exchange, '', false, $invalid));
    line('acked', publish(confirming($connection), letter('afterwards'), $exchange));
    $connection->close();
}

function idle(string $url, string $exchange): void
{
    $connection = connect($url, heartbeat: 1);
    $channel = confirming($connection);
    $end = microtime(true) + 4;
    while (microtime(true) < $end) {
        $connection->checkHeartBeat();
        usleep(100000);
    }
    line('acked', publish($channel, letter('late'), $exchange));
    $connection->close();
}

function cancelled(string $url): void
{
    $connection = connect($url);
    $channel = $connection->channel();
    $channel->queue_declare('gone', false, true, false, false);
    $channel->basic_consume('gone', 'reader');
    $connection->channel()->queue_delete('gone');
    try {
        $channel->wait(null, false, 30);
    } catch (AMQPBasicCancelException $cancel) {
        line('cancelled', $cancel->consumerTag);
    }
    $connection->close();
}

function transactions(string $url, string $exchange): void
{
    $connection = connect($url);
    $channel = $connection->channel();
    $channel->tx_select();
    $channel->basic_publish(letter('rolled back'), $exchange, 'k');
    $channel->tx_rollback();
    $channel->basic_publish(letter('committed'), $exchange, 'k');
    $channel->tx_commit();
    $connection->close();
}

/** Connect again whenever the connection is lost. */
function recovery(string $url): void
{
    $done = false;
    while (!$done) {
        try {
            $connection = connect($url);
            $channel = $connection->channel();
            $channel->exchange_declare('fleet', 'x-open', false, false, true);
            [$queue] = $channel->queue_declare('', false, false, true, true);
            $channel->queue_bind($queue, 'fleet', '', false, new AMQPTable(['x-?hkv= kind' => 'letter']));
            $channel->basic_consume($queue, '', false, true, true, false, function (AMQPMessage $message) use (&$done) {
                line('received', $message->getBody());
                $done = $message->getBody() === 'last';
            });
            line('consuming');
            while (!$done) {
                $channel->wait(null, false, 60);
            }
            $connection->close();
        } catch (AMQPExceptionInterface $lost) {
            usleep(100000);
        }
    }
}

[, $name] = $argv;
$name(...array_slice($argv, 2));
