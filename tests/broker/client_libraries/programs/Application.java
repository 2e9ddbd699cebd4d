// An application that uses RabbitMQ's Java client; programs.py describes its arguments and output.

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Collections;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.stream.Collectors;
import java.util.stream.Stream;

public class Application {
    static final AMQP.BasicProperties LETTER =
            MessageProperties.PERSISTENT_BASIC.builder().headers(Map.of("kind", "letter")).build();

    interface Use {
        void on(Channel channel) throws Exception;
    }

    static synchronized void line(Object... values) {
        System.out.println(Stream.of(values).map(String::valueOf).collect(Collectors.joining("\t")));
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    static ConnectionFactory factory(String url) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(url);
        factory.setNetworkRecoveryInterval(200);
        return factory;
    }

    /** Publish a mandatory message on a channel in confirm mode, and wait for the confirm. */
    static boolean publish(Channel channel, String exchange, String key, AMQP.BasicProperties properties, byte[] body)
            throws Exception {
        channel.basicPublish(exchange, key, true, properties, body);
        return channel.waitForConfirms(30_000);
    }

    static void orders(String url) throws Exception {
        try (Connection connection = factory(url).newConnection(); Channel channel = connection.createChannel()) {
            channel.exchangeDeclare("sales", "x-open", true);
            channel.queueDeclare("large", true, false, false, null);
            Map<String, Object> condition = Map.of("x-?hkv>= amount", 1000);
            channel.queueBind("large", "sales", "", condition);
            channel.confirmSelect();
            channel.addReturnListener(
                    returned -> line("returned", returned.getReplyCode(), returned.getExchange(),
                            returned.getRoutingKey(), text(returned.getBody())));
            order(channel, 2500);
            order(channel, 10);

            channel.basicQos(1);
            BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
            channel.basicConsume("large", false, "shop", (tag, delivery) -> deliveries.add(delivery), tag -> {});
            for (boolean requeue : new boolean[] {true, false}) {
                Delivery delivery = deliveries.take();
                Object amount = delivery.getProperties().getHeaders().get("amount");
                var envelope = delivery.getEnvelope();
                line("delivered", envelope.getExchange(), envelope.getRoutingKey(), amount, envelope.isRedeliver());
                if (requeue) {
                    channel.basicNack(envelope.getDeliveryTag(), false, true);
                } else {
                    channel.basicAck(envelope.getDeliveryTag(), false);
                }
            }
            channel.basicCancel("shop");
            GetResponse response = channel.basicGet("large", true);
            line("got", response != null);

            channel.queueUnbind("large", "sales", "", condition);
            order(channel, 2500);
            channel.queueDelete("large");
            channel.exchangeDelete("sales");
        }
    }

    static void order(Channel channel, int amount) throws Exception {
        var properties = new AMQP.BasicProperties.Builder().headers(Map.of("amount", amount)).build();
        boolean acked = publish(channel, "sales", "k", properties, bytes("" + amount));
        line("confirmed", amount, acked);
    }

    static void types(String url, String exchange, String key) throws Exception {
        Map<String, Object> headers = new HashMap<>();
        headers.put("string", "2000");
        headers.put("integer", 2000);
        headers.put("long", 2000L);
        headers.put("big", 1L << 40);
        headers.put("short", (short) 300);
        headers.put("small", (byte) 5);
        headers.put("double", 2000.5);
        headers.put("single", 2000.5f);
        headers.put("boolean", true);
        headers.put("decimal", new BigDecimal("12.34"));
        headers.put("timestamp", new Date(1_800_000_000_000L));
        headers.put("bytes", new byte[] {0, (byte) 255});
        headers.put("null", null);
        headers.put("list", List.of(1, "a"));
        headers.put("table", Map.of("a", 1));
        var properties = new AMQP.BasicProperties.Builder().headers(headers).contentType("text/plain")
                .contentEncoding("utf-8").deliveryMode(2).priority(3).correlationId("c").replyTo("r")
                .expiration("600000").messageId("m").timestamp(new Date(1_800_000_000_000L)).type("t").userId("guest")
                .appId("a").build();
        try (Connection connection = factory(url).newConnection(); Channel channel = connection.createChannel()) {
            int[] returned = {0};
            channel.addReturnListener(message -> returned[0]++);
            channel.confirmSelect();
            boolean acked = publish(channel, exchange, key, properties, bytes("typed"));
            line("confirmed", acked, returned[0]);
        }
    }

    /** Publish without waiting; a listener counts the confirms. */
    static void many(String url, String exchange) throws Exception {
        try (Connection connection = factory(url).newConnection(); Channel channel = connection.createChannel()) {
            channel.confirmSelect();
            SortedMap<Long, Integer> unconfirmed = Collections.synchronizedSortedMap(new TreeMap<>());
            CountDownLatch acked = new CountDownLatch(500);
            channel.addConfirmListener((tag, multiple) -> {
                var settled = multiple ? unconfirmed.headMap(tag + 1) : unconfirmed.subMap(tag, tag + 1);
                int count = settled.size();
                settled.clear();
                for (; count > 0; count--) {
                    acked.countDown();
                }
            }, (tag, multiple) -> line("nacked", tag));
            for (int number = 0; number < 500; number++) {
                unconfirmed.put(channel.getNextPublishSeqNo(), number);
                channel.basicPublish(exchange, "k", LETTER, bytes("" + number));
            }
            acked.await();
            line("acked", 500 - acked.getCount() - unconfirmed.size());
        }
    }

    static void large(String url, String exchange) throws Exception {
        ConnectionFactory factory = factory(url);
        factory.setRequestedFrameMax(4096);
        byte[] body = new byte[1 << 20];
        for (int index = 0; index < body.length; index++) {
            body[index] = (byte) (index % 251);
        }
        try (Connection connection = factory.newConnection(); Channel channel = connection.createChannel()) {
            channel.confirmSelect();
            line("acked", publish(channel, exchange, "k", LETTER, body));
            BlockingQueue<byte[]> received = new LinkedBlockingQueue<>();
            channel.basicConsume("inbox", true, (tag, delivery) -> received.add(delivery.getBody()), tag -> {});
            byte[] content = received.take();
            StringBuilder digest = new StringBuilder();
            for (byte part : MessageDigest.getInstance("SHA-256").digest(content)) {
                digest.append(String.format("%02x", part));
            }
            line("received", content.length, digest);
            line("frame_max", connection.getFrameMax());
        }
    }

    static void closes(String url, String exchange) throws Exception {
        try (Connection connection = factory(url).newConnection()) {
            refused(connection, "missing", channel -> channel.queueDeclarePassive("missing"));
            refused(connection, "reserved", channel -> publish(channel, exchange, "x.o.p.e.n.x.q", LETTER, bytes("")));
            refused(connection, "invalid",
                    channel -> channel.queueBind("inbox", exchange, "", Map.of("x-?hkv>= amount", "much")));
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            line("acked", publish(channel, exchange, "k", LETTER, bytes("afterwards")));
        }
    }

    static void refused(Connection connection, String name, Use use) throws Exception {
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        try {
            use.on(channel);
        } catch (IOException | ShutdownSignalException refusal) {
            var signal = (ShutdownSignalException)
                    (refusal instanceof ShutdownSignalException ? refusal : refusal.getCause());
            line(name, ((AMQP.Channel.Close) signal.getReason()).getReplyCode(), !connection.isOpen());
        }
    }

    static void idle(String url, String exchange) throws Exception {
        ConnectionFactory factory = factory(url);
        factory.setRequestedHeartbeat(1);
        factory.setAutomaticRecoveryEnabled(false);
        try (Connection connection = factory.newConnection(); Channel channel = connection.createChannel()) {
            channel.confirmSelect();
            Thread.sleep(4000);
            line("acked", publish(channel, exchange, "k", LETTER, bytes("late")));
        }
    }

    static void cancelled(String url) throws Exception {
        try (Connection connection = factory(url).newConnection(); Channel channel = connection.createChannel()) {
            channel.queueDeclare("gone", true, false, false, null);
            BlockingQueue<String> cancels = new LinkedBlockingQueue<>();
            channel.basicConsume("gone", false, "reader", (tag, delivery) -> {}, cancels::add);
            connection.createChannel().queueDelete("gone");
            line("cancelled", cancels.take());
        }
    }

    static void transactions(String url, String exchange) throws Exception {
        try (Connection connection = factory(url).newConnection(); Channel channel = connection.createChannel()) {
            channel.txSelect();
            channel.basicPublish(exchange, "k", LETTER, bytes("rolled back"));
            channel.txRollback();
            channel.basicPublish(exchange, "k", LETTER, bytes("committed"));
            channel.txCommit();
        }
    }

    /** The library connects again, and declares, binds and consumes again. */
    static void recovery(String url) throws Exception {
        try (Connection connection = factory(url).newConnection("recovery")) {
            Channel channel = connection.createChannel();
            channel.exchangeDeclare("fleet", "x-open", false, true, null);
            String queue = channel.queueDeclare().getQueue();
            channel.queueBind(queue, "fleet", "", Map.of("x-?hkv= kind", "letter"));
            CountDownLatch last = new CountDownLatch(1);
            channel.basicConsume(queue, true, (tag, delivery) -> {
                line("received", text(delivery.getBody()));
                if (Arrays.equals(delivery.getBody(), bytes("last"))) {
                    last.countDown();
                }
            }, tag -> {});
            line("consuming");
            last.await();
        }
    }

    /** The methods that Spring AMQP sends for beans, a listener, and a template with confirms and returns. */
    static void spring(String url, String exchange, String type, String queue, String argument, String header)
            throws Exception {
        ConnectionFactory factory = factory(url);
        factory.setAutomaticRecoveryEnabled(false);
        try (Connection connection = factory.newConnection("rabbitConnectionFactory#1")) {
            Channel admin = connection.createChannel();
            admin.exchangeDeclare(exchange, type, true, false, Map.of());
            admin.queueDeclare(queue, true, false, false, Map.of());
            admin.queueBind(queue, exchange, "", Map.of(argument, 1000));
            line("version", connection.getServerProperties().get("version"));

            Channel listener = connection.createChannel();
            listener.basicQos(250);
            listener.queueDeclarePassive(queue);
            BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
            listener.basicConsume(queue, false, (tag, delivery) -> deliveries.add(delivery), tag -> {});

            Channel template = connection.createChannel();
            template.confirmSelect();
            BlockingQueue<Long> confirms = new LinkedBlockingQueue<>();
            template.addConfirmListener((tag, multiple) -> confirms.add(tag), (tag, multiple) -> confirms.add(-tag));
            template.addReturnListener(returned -> {
                Object correlation = returned.getProperties().getHeaders().get("spring_returned_message_correlation");
                line("returned", returned.getReplyCode(), returned.getExchange(), correlation);
            });
            for (int amount : new int[] {2500, 10}) {
                Map<String, Object> headers = Map.of(header, amount, "spring_listener_return_correlation", "listener",
                        "spring_returned_message_correlation", "order " + amount);
                var properties = MessageProperties.PERSISTENT_TEXT_PLAIN.builder().headers(headers).build();
                template.basicPublish(exchange, "", true, properties, bytes("" + amount));
                line("confirmed", confirms.take());
            }
            Delivery delivery = deliveries.take();
            line("delivered", delivery.getEnvelope().getExchange(), text(delivery.getBody()));
            listener.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
            admin.queueDelete(queue);
            admin.exchangeDelete(exchange);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String url = arguments[1];
        switch (arguments[0]) {
            case "orders": orders(url); break;
            case "types": types(url, arguments[2], arguments[3]); break;
            case "many": many(url, arguments[2]); break;
            case "large": large(url, arguments[2]); break;
            case "closes": closes(url, arguments[2]); break;
            case "idle": idle(url, arguments[2]); break;
            case "cancelled": cancelled(url); break;
            case "transactions": transactions(url, arguments[2]); break;
            case "recovery": recovery(url); break;
            case "spring":
                spring(url, arguments[2], arguments[3], arguments[4], arguments[5], arguments[6]);
                break;
            default: throw new IllegalArgumentException(arguments[0]);
        }
    }
}
