// An application that uses amqplib; programs.py describes its arguments and output.
"use strict";

const { createHash } = require("node:crypto");
const { setTimeout: sleep } = require("node:timers/promises");
const amqplib = require("amqplib");

const line = (...values) => console.log(values.map(String).join("\t"));

const letter = { headers: { kind: "letter" }, persistent: true };

/** Publish a message on a confirm channel, and wait for the confirm. */
const publish = (channel, exchange, body, options, key = "k") =>
  new Promise((resolve) => {
    channel.publish(exchange, key, Buffer.from(body), { mandatory: true, ...options }, (error) => resolve(!error));
  });

/** Consume messages one after the other: the result has a function that waits for the next one. */
async function consume(channel, queue, options) {
  const waiting = [];
  const received = [];
  const { consumerTag } = await channel.consume(
    queue,
    (message) => {
      const next = waiting.shift();
      if (next) next(message);
      else received.push(message);
    },
    options,
  );
  const next = () => (received.length ? received.shift() : new Promise((resolve) => waiting.push(resolve)));
  return { consumerTag, next };
}

async function orders(url) {
  const connection = await amqplib.connect(url);
  const channel = await connection.createConfirmChannel();
  await channel.assertExchange("sales", "x-open", { durable: true });
  await channel.assertQueue("large", { durable: true });
  const condition = { "x-?hkv>= amount": 1000 };
  await channel.bindQueue("large", "sales", "", condition);
  channel.on("return", ({ fields, content }) =>
    line("returned", fields.replyCode, fields.exchange, fields.routingKey, content),
  );
  const order = async (amount) => {
    const acked = await publish(channel, "sales", `${amount}`, { headers: { amount } });
    line("confirmed", amount, acked);
  };
  await order(2500);
  await order(10);

  await channel.prefetch(1);
  const { consumerTag, next } = await consume(channel, "large");
  for (const requeue of [true, false]) {
    const message = await next();
    const { fields, properties } = message;
    line("delivered", fields.exchange, fields.routingKey, properties.headers.amount, fields.redelivered);
    if (requeue) channel.nack(message);
    else channel.ack(message);
  }
  await channel.cancel(consumerTag);
  line("got", Boolean(await channel.get("large")));

  await channel.unbindQueue("large", "sales", "", condition);
  await order(2500);
  await channel.deleteQueue("large");
  await channel.deleteExchange("sales");
  await connection.close();
}

async function types(url, exchange, key) {
  const connection = await amqplib.connect(url);
  const channel = await connection.createConfirmChannel();
  let returned = 0;
  channel.on("return", () => (returned += 1));
  const headers = {
    string: "2000",
    small: 5,
    short: 2000,
    integer: 70000,
    big: 2 ** 40,
    double: 2000.5,
    boolean: true,
    null: null,
    bytes: Buffer.from([0, 255]),
    list: [1, "a"],
    table: { a: 1 },
    timestamp: { "!": "timestamp", value: 1800000000 },
    decimal: { "!": "decimal", value: { places: 2, digits: 1234 } },
    single: { "!": "float", value: 2000.5 },
    int64: { "!": "int64", value: 2000 },
  };
  const options = {
    headers,
    contentType: "text/plain",
    contentEncoding: "utf-8",
    persistent: true,
    priority: 3,
    correlationId: "c",
    replyTo: "r",
    expiration: 600000,
    messageId: "m",
    timestamp: 1800000000,
    type: "t",
    userId: "guest",
    appId: "a",
  };
  const acked = await publish(channel, exchange, "typed", options, key);
  line("confirmed", acked, returned);
  await connection.close();
}

async function many(url, exchange) {
  const connection = await amqplib.connect(url);
  const channel = await connection.createConfirmChannel();
  let acked = 0;
  for (let number = 0; number < 500; number += 1) {
    channel.publish(exchange, "k", Buffer.from(`${number}`), letter, (error) => (acked += error ? 0 : 1));
  }
  await channel.waitForConfirms();
  line("acked", acked);
  await connection.close();
}

async function large(url, exchange) {
  const connection = await amqplib.connect(`${url}?frameMax=4096`);
  const channel = await connection.createConfirmChannel();
  const body = Buffer.from(Uint8Array.from({ length: 1 << 20 }, (_, index) => index % 251));
  line("acked", await publish(channel, exchange, body, letter));
  const { next } = await consume(channel, "inbox", { noAck: true });
  const { content } = await next();
  line("received", content.length, createHash("sha256").update(content).digest("hex"));
  line("frame_max", connection.connection.frameMax);
  await connection.close();
}

async function closes(url, exchange) {
  const connection = await amqplib.connect(url);
  let open = true;
  connection.on("close", () => (open = false));
  const refused = async (name, use) => {
    const channel = await connection.createConfirmChannel();
    const closed = new Promise((resolve) => channel.on("close", resolve));
    const failed = new Promise((resolve) => channel.on("error", resolve));
    Promise.resolve(use(channel)).catch(() => {}); // the event contains the error
    const { code } = await failed;
    await closed;
    line(name, code, !open);
  };
  await refused("missing", (channel) => channel.checkQueue("missing"));
  await refused("reserved", (channel) => publish(channel, exchange, "", letter, "x.o.p.e.n.x.q"));
  await refused("invalid", (channel) => channel.bindQueue("inbox", exchange, "", { "x-?hkv>= amount": "much" }));
  const channel = await connection.createConfirmChannel();
  line("acked", await publish(channel, exchange, "afterwards", letter));
  await connection.close();
}

async function idle(url, exchange) {
  const connection = await amqplib.connect(`${url}?heartbeat=1`);
  const channel = await connection.createConfirmChannel();
  await sleep(4000);
  line("acked", await publish(channel, exchange, "late", letter));
  await connection.close();
}

async function cancelled(url) {
  const connection = await amqplib.connect(url);
  const channel = await connection.createChannel();
  await channel.assertQueue("gone", { durable: true });
  const { next } = await consume(channel, "gone");
  const message = next();
  const other = await connection.createChannel();
  await other.deleteQueue("gone");
  line("cancelled", (await message) === null ? "reader" : "a message");
  await connection.close();
}

/** The library connects again; the application declares, binds and consumes whenever it has connected. */
async function recovery(url) {
  let finish;
  const last = new Promise((resolve) => (finish = resolve));
  const receive = ({ content }) => {
    line("received", content);
    if (content.toString() === "last") finish();
  };
  const setup = async (connection) => {
    const channel = await connection.createChannel();
    await channel.assertExchange("fleet", "x-open", { durable: false, autoDelete: true });
    const { queue } = await channel.assertQueue("", { exclusive: true, autoDelete: true });
    await channel.bindQueue(queue, "fleet", "", { "x-?hkv= kind": "letter" });
    line("consuming");
    await channel.consume(queue, receive, { noAck: true });
  };
  const connection = await amqplib.connect(url, { recovery: { initialDelay: 100, maxDelay: 1000, setup } });
  connection.on("error", () => {}); // without a listener, it would end the process
  await last;
  await connection.close();
}

const [name, ...values] = process.argv.slice(2);
const scenarios = { orders, types, many, large, closes, idle, cancelled, recovery };
scenarios[name](...values).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
