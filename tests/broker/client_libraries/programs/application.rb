# An application that uses Bunny; programs.py describes its arguments and output.

require "bunny"
require "bigdecimal"
require "digest"

$stdout.sync = true

def line(*values)
  puts values.join("\t")
end

# Options of a publish, which the library changes.
def letter
  { routing_key: "k", headers: { "kind" => "letter" }, persistent: true }
end

def connect(url, **options)
  Bunny.new(url, network_recovery_interval: 0.2, log_level: Logger::FATAL, **options).start
end

# Publish a message on a channel in confirm mode, and wait for the confirm.
def publish(channel, exchange, body, **options)
  exchange.publish(body, mandatory: true, **options)
  channel.wait_for_confirms
end

# An exchange that is not declared by the application.
def known(channel, name)
  Bunny::Exchange.new(channel, :direct, name, no_declare: true)
end

def orders(url)
  connection = connect(url)
  channel = connection.create_channel
  sales = channel.exchange("sales", type: "x-open", durable: true)
  large = channel.queue("large", durable: true)
  arguments = { "x-?hkv>= amount" => 1000 }
  large.bind(sales, arguments: arguments)
  channel.confirm_select
  sales.on_return do |info, _properties, body|
    line "returned", info.reply_code, info.exchange, info.routing_key, body
  end
  order = lambda do |amount|
    line "confirmed", amount, publish(channel, sales, amount.to_s, routing_key: "k", headers: { "amount" => amount })
  end
  order.call(2500)
  order.call(10)

  channel.prefetch(1)
  deliveries = Queue.new
  consumer = large.subscribe(manual_ack: true, consumer_tag: "shop") do |info, properties, _body|
    line "delivered", info.exchange, info.routing_key, properties.headers["amount"], info.redelivered?
    info.redelivered? ? channel.ack(info.delivery_tag) : channel.nack(info.delivery_tag, false, true)
    deliveries << info
  end
  2.times { deliveries.pop }
  consumer.cancel
  line "got", !large.pop.first.nil?

  large.unbind(sales, arguments: arguments)
  order.call(2500)
  large.delete
  sales.delete
  connection.close
end

def types(url, exchange, key)
  connection = connect(url)
  channel = connection.create_channel
  channel.confirm_select
  headers = {
    "string" => "2000", "symbol" => :a, "integer" => 2000, "big" => 2**40, "double" => 2000.5, "boolean" => true,
    "null" => nil, "list" => [1, "a"], "table" => { "a" => 1 }, "timestamp" => Time.at(1_800_000_000),
    "decimal" => BigDecimal("12.34"),
  }
  target = known(channel, exchange)
  returned = 0
  target.on_return { returned += 1 }
  acked = publish(
    channel, target, "typed",
    routing_key: key, headers: headers, content_type: "text/plain", content_encoding: "utf-8", persistent: true,
    priority: 3, correlation_id: "c", reply_to: "r", expiration: "600000", message_id: "m", timestamp: 1_800_000_000,
    type: "t", user_id: "guest", app_id: "a"
  )
  line "confirmed", acked, returned
  connection.close
end

def many(url, exchange)
  connection = connect(url)
  channel = connection.create_channel
  channel.confirm_select
  target = known(channel, exchange)
  500.times { |number| target.publish(number.to_s, **letter) }
  acked = channel.wait_for_confirms
  line "acked", acked ? 500 - channel.unconfirmed_set.size - channel.nacked_set.size : 0
  connection.close
end

def large(url, exchange)
  connection = connect(url, frame_max: 4096)
  channel = connection.create_channel
  channel.confirm_select
  body = Array.new(1 << 20) { |index| index % 251 }.pack("C*")
  line "acked", publish(channel, known(channel, exchange), body, **letter)
  received = Queue.new
  channel.queue("inbox", no_declare: true).subscribe { |_info, _properties, content| received << content }
  content = received.pop
  line "received", content.bytesize, Digest::SHA256.hexdigest(content)
  line "frame_max", connection.frame_max
  connection.close
end

def closes(url, exchange)
  connection = connect(url)
  refused = lambda do |name, &use|
    use.call(connection.create_channel)
  rescue Bunny::ChannelAlreadyClosed # before the method that would have raised the reason was sent
    retry
  rescue Bunny::ChannelLevelException => e
    line name, e.channel_close.reply_code, connection.closed?
  end
  refused.call("missing") { |channel| channel.queue("missing", passive: true) }
  refused.call("reserved") do |channel|
    known(channel, exchange).publish("", **letter, routing_key: "x.o.p.e.n.x.q")
    channel.queue("inbox", passive: true) # the next method with a reply raises the error
  end
  refused.call("invalid") do |channel|
    channel.queue_bind("inbox", exchange, arguments: { "x-?hkv>= amount" => "much" })
  end
  channel = connection.create_channel
  channel.confirm_select
  line "acked", publish(channel, known(channel, exchange), "afterwards", **letter)
  connection.close
end

def idle(url, exchange)
  connection = connect(url, heartbeat: 1)
  channel = connection.create_channel
  channel.confirm_select
  sleep 4
  line "acked", publish(channel, known(channel, exchange), "late", **letter)
  connection.close
end

def cancelled(url)
  connection = connect(url)
  channel = connection.create_channel
  queue = channel.queue("gone", durable: true)
  cancels = Queue.new
  consumer = Bunny::Consumer.new(channel, queue, "reader")
  consumer.on_cancellation { |cancel| cancels << cancel.consumer_tag }
  queue.subscribe_with(consumer)
  connection.create_channel.queue_delete("gone")
  line "cancelled", cancels.pop
  connection.close
end

def transactions(url, exchange)
  connection = connect(url)
  channel = connection.create_channel
  target = known(channel, exchange)
  channel.tx_select
  target.publish("rolled back", **letter)
  channel.tx_rollback
  target.publish("committed", **letter)
  channel.tx_commit
  connection.close
end

# The library connects again, and declares, binds and consumes again.
def recovery(url)
  connection = connect(url, connection_name: "recovery")
  channel = connection.create_channel
  fleet = channel.exchange("fleet", type: "x-open", durable: false, auto_delete: true)
  queue = channel.queue("", exclusive: true, auto_delete: true)
  queue.bind(fleet, arguments: { "x-?hkv= kind" => "letter" })
  last = Queue.new
  queue.subscribe do |_info, _properties, body|
    line "received", body
    last << body if body == "last"
  end
  line "consuming"
  last.pop
  connection.close
end

name, *values = ARGV
send(name, *values)
