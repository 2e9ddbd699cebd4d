// An application that uses amqp091-go; programs.py describes its arguments and output.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var background = context.Background()

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func line(values ...any) {
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = fmt.Sprint(value)
	}
	fmt.Println(strings.Join(texts, "\t"))
}

// confirming puts a channel into confirm mode, and returns its confirms. The library notes a deferred confirm only after
// it has sent the message, and then waits forever if the ack has already arrived.
func confirming(channel *amqp.Channel) chan amqp.Confirmation {
	check(channel.Confirm(false))
	return channel.NotifyPublish(make(chan amqp.Confirmation, 500))
}

// publish publishes a message, and waits for the confirm.
func publish(channel *amqp.Channel, confirms chan amqp.Confirmation, exchange string, message amqp.Publishing) bool {
	check(channel.PublishWithContext(background, exchange, "k", true, false, message))
	return (<-confirms).Ack
}

func letter(body []byte) amqp.Publishing {
	return amqp.Publishing{Headers: amqp.Table{"kind": "letter"}, Body: body, DeliveryMode: amqp.Persistent}
}

func orders(url string) {
	connection := must(amqp.Dial(url))
	channel := must(connection.Channel())
	check(channel.ExchangeDeclare("sales", "x-open", true, false, false, false, nil))
	must(channel.QueueDeclare("large", true, false, false, false, nil))
	arguments := amqp.Table{"x-?hkv>= amount": 1000}
	check(channel.QueueBind("large", "", "sales", false, arguments))
	confirms := confirming(channel)
	returns := channel.NotifyReturn(make(chan amqp.Return, 1))
	order := func(amount int) {
		message := amqp.Publishing{Headers: amqp.Table{"amount": amount}, Body: []byte(fmt.Sprint(amount))}
		acked := publish(channel, confirms, "sales", message)
		select {
		case returned := <-returns:
			line("returned", returned.ReplyCode, returned.Exchange, returned.RoutingKey, string(returned.Body))
		default:
		}
		line("confirmed", amount, acked)
	}
	order(2500)
	order(10)

	check(channel.Qos(1, 0, false))
	deliveries := must(channel.Consume("large", "shop", false, false, false, false, nil))
	for _, requeue := range []bool{true, false} {
		delivery := <-deliveries
		line("delivered", delivery.Exchange, delivery.RoutingKey, delivery.Headers["amount"], delivery.Redelivered)
		if requeue {
			check(delivery.Nack(false, true))
		} else {
			check(delivery.Ack(false))
		}
	}
	check(channel.Cancel("shop", false))
	_, found, err := channel.Get("large", true)
	check(err)
	line("got", found)

	check(channel.QueueUnbind("large", "", "sales", arguments))
	order(2500)
	must(channel.QueueDelete("large", false, false, false))
	check(channel.ExchangeDelete("sales", false, false))
	check(connection.Close())
}

func types(url, exchange, key string) {
	connection := must(amqp.Dial(url))
	channel := must(connection.Channel())
	confirms := confirming(channel)
	returns := channel.NotifyReturn(make(chan amqp.Return, 1))
	headers := amqp.Table{
		"string": "2000", "integer": 2000, "small": int8(5), "short": int16(300), "int32": int32(70000),
		"int64": int64(1 << 40), "double": 2000.5, "single": float32(2000.5), "boolean": true,
		"decimal": amqp.Decimal{Scale: 2, Value: 1234}, "timestamp": time.Unix(1800000000, 0),
		"bytes": []byte{0, 255}, "null": nil, "list": []any{int32(1), "a"}, "table": amqp.Table{"a": int32(1)},
	}
	message := amqp.Publishing{
		Headers: headers, ContentType: "text/plain", ContentEncoding: "utf-8", DeliveryMode: amqp.Persistent, Priority: 3,
		CorrelationId: "c", ReplyTo: "r", Expiration: "600000", MessageId: "m", Timestamp: time.Unix(1800000000, 0),
		Type: "t", UserId: "guest", AppId: "a", Body: []byte("typed"),
	}
	check(channel.PublishWithContext(background, exchange, key, true, false, message))
	line("confirmed", (<-confirms).Ack, len(returns))
	check(connection.Close())
}

func many(url, exchange string) {
	connection := must(amqp.Dial(url))
	channel := must(connection.Channel())
	confirms := confirming(channel)
	for number := 0; number < cap(confirms); number++ {
		message := letter([]byte(fmt.Sprint(number)))
		check(channel.PublishWithContext(background, exchange, "k", false, false, message))
	}
	acked := 0
	for number := 0; number < cap(confirms); number++ {
		if (<-confirms).Ack {
			acked++
		}
	}
	line("acked", acked)
	check(connection.Close())
}

func large(url, exchange string) {
	connection := must(amqp.DialConfig(url, amqp.Config{FrameSize: 4096, Heartbeat: 10 * time.Second, Locale: "en_US"}))
	channel := must(connection.Channel())
	confirms := confirming(channel)
	body := make([]byte, 1<<20)
	for i := range body {
		body[i] = byte(i % 251)
	}
	line("acked", publish(channel, confirms, exchange, letter(body)))
	delivery := <-must(channel.Consume("inbox", "", true, false, false, false, nil))
	line("received", len(delivery.Body), fmt.Sprintf("%x", sha256.Sum256(delivery.Body)))
	line("frame_max", connection.Config.FrameSize)
	check(connection.Close())
}

func closes(url, exchange string) {
	connection := must(amqp.Dial(url))
	refused := func(name string, use func(channel *amqp.Channel) error) {
		channel := must(connection.Channel())
		check(channel.Confirm(false))
		closed := channel.NotifyClose(make(chan *amqp.Error, 1))
		err := use(channel)
		if err == nil {
			err = <-closed
		}
		var refusal *amqp.Error
		if !errors.As(err, &refusal) {
			log.Fatal(err)
		}
		line(name, refusal.Code, connection.IsClosed())
	}
	refused("missing", func(channel *amqp.Channel) error {
		_, err := channel.QueueDeclarePassive("missing", true, false, false, false, nil)
		return err
	})
	refused("reserved", func(channel *amqp.Channel) error {
		return channel.PublishWithContext(background, exchange, "x.o.p.e.n.x.q", false, false, letter(nil))
	})
	refused("invalid", func(channel *amqp.Channel) error {
		return channel.QueueBind("inbox", "", exchange, false, amqp.Table{"x-?hkv>= amount": "much"})
	})
	channel := must(connection.Channel())
	confirms := confirming(channel)
	line("acked", publish(channel, confirms, exchange, letter([]byte("afterwards"))))
	check(connection.Close())
}

func idle(url, exchange string) {
	connection := must(amqp.DialConfig(url, amqp.Config{Heartbeat: time.Second, Locale: "en_US"}))
	channel := must(connection.Channel())
	confirms := confirming(channel)
	time.Sleep(4 * time.Second)
	line("acked", publish(channel, confirms, exchange, letter([]byte("late"))))
	check(connection.Close())
}

func cancelled(url string) {
	connection := must(amqp.Dial(url))
	channel := must(connection.Channel())
	must(channel.QueueDeclare("gone", true, false, false, false, nil))
	cancels := channel.NotifyCancel(make(chan string, 1))
	must(channel.Consume("gone", "reader", false, false, false, false, nil))
	must(must(connection.Channel()).QueueDelete("gone", false, false, false))
	line("cancelled", <-cancels)
	check(connection.Close())
}

func transactions(url, exchange string) {
	connection := must(amqp.Dial(url))
	channel := must(connection.Channel())
	check(channel.Tx())
	for _, body := range []string{"rolled back", "committed"} {
		check(channel.PublishWithContext(background, exchange, "k", false, false, letter([]byte(body))))
		if body == "committed" {
			check(channel.TxCommit())
		} else {
			check(channel.TxRollback())
		}
	}
	check(connection.Close())
}

// recovery connects again whenever the connection is lost, since the library does not.
func recovery(url string) {
	for !consume(url) {
		time.Sleep(100 * time.Millisecond)
	}
}

// consume returns whether the last message was received; if not, the connection was lost.
func consume(url string) bool {
	connection, err := amqp.Dial(url)
	if err != nil {
		return false
	}
	defer connection.Close()
	channel := must(connection.Channel())
	check(channel.ExchangeDeclare("fleet", "x-open", false, true, false, false, nil))
	queue := must(channel.QueueDeclare("", false, true, true, false, nil))
	check(channel.QueueBind(queue.Name, "", "fleet", false, amqp.Table{"x-?hkv= kind": "letter"}))
	deliveries := must(channel.Consume(queue.Name, "", true, true, false, false, nil))
	line("consuming")
	for delivery := range deliveries {
		line("received", string(delivery.Body))
		if string(delivery.Body) == "last" {
			return true
		}
	}
	return false
}

func main() {
	name, url, arguments := os.Args[1], os.Args[2], append(os.Args[3:], "", "")
	switch name {
	case "orders":
		orders(url)
	case "types":
		types(url, arguments[0], arguments[1])
	case "many":
		many(url, arguments[0])
	case "large":
		large(url, arguments[0])
	case "closes":
		closes(url, arguments[0])
	case "idle":
		idle(url, arguments[0])
	case "cancelled":
		cancelled(url)
	case "transactions":
		transactions(url, arguments[0])
	case "recovery":
		recovery(url)
	default:
		log.Fatal(name)
	}
}
