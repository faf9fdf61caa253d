// A life of Sarama (see ../__init__.py).
package main

import (
	"context"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

type access struct {
	Bootstrap string
	Login     *struct {
		User, Password string
		CaFile         string `json:"ca_file"`
	}
}

// login is what Sarama asks of a SCRAM client.
type login struct{ *scram.ClientConversation }

func (l *login) Begin(user, password, authzID string) error {
	client, err := scram.HashGeneratorFcn(sha512.New).NewClient(user, password, authzID)
	if err != nil {
		return err
	}
	l.ClientConversation = client.NewConversation()
	return nil
}

func config(file string) (*sarama.Config, []string) {
	text, err := os.ReadFile(file)
	check(err)
	var given access
	check(json.Unmarshal(text, &given))
	c := sarama.NewConfig()
	c.Version = sarama.V2_8_0_0
	c.Metadata.Retry.Max, c.Metadata.Retry.Backoff = 100, 200*time.Millisecond
	c.Metadata.RefreshFrequency = 2 * time.Second
	c.Producer.Idempotent, c.Producer.RequiredAcks, c.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
	c.Producer.Retry.Max, c.Producer.Retry.Backoff = 300, 200*time.Millisecond
	c.Producer.Return.Successes = true
	c.Producer.Transaction.Retry.Max, c.Producer.Transaction.Retry.Backoff = 300, 200*time.Millisecond
	c.Consumer.Offsets.Initial, c.Consumer.Offsets.AutoCommit.Enable = sarama.OffsetOldest, false
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	c.ChannelBufferSize = 20
	if given.Login != nil {
		pem, err := os.ReadFile(given.Login.CaFile)
		check(err)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		c.Net.TLS.Enable, c.Net.TLS.Config = true, &tls.Config{RootCAs: roots}
		c.Net.SASL.Enable, c.Net.SASL.Mechanism = true, sarama.SASLTypeSCRAMSHA512
		c.Net.SASL.User, c.Net.SASL.Password = given.Login.User, given.Login.Password
		c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &login{} }
	}
	return c, strings.Split(given.Bootstrap, ",")
}

func write(file, topic string, records int) {
	c, brokers := config(file)
	producer, err := sarama.NewSyncProducer(brokers, c)
	check(err)
	for n := 0; n < records; n++ {
		value := strconv.Itoa(n)
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)})
		check(err)
		fmt.Println("acked " + value)
		time.Sleep(10 * time.Millisecond)
	}
	check(producer.Close())
}

// copier is a member of the group; a session ends where a transaction is aborted.
type copier struct {
	to, group string
	producer  sarama.SyncProducer
	done      *int
	records   int
	turn      chan struct{}
	cancel    context.CancelFunc
}

func (copier) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (copier) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (c copier) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			c.turn <- struct{}{} // partitions have goroutines of their own, and a producer one transaction
			err := c.one(message)
			<-c.turn
			if err != nil {
				fmt.Fprintln(os.Stderr, "aborted for", err)
				return nil
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func (c copier) one(message *sarama.ConsumerMessage) error {
	check(c.producer.BeginTxn())
	_, _, err := c.producer.SendMessage(&sarama.ProducerMessage{Topic: c.to, Value: sarama.ByteEncoder(message.Value)})
	if err == nil {
		err = c.producer.AddMessageToTxn(message, c.group, nil)
	}
	for until := time.Now().Add(time.Minute); err == nil; {
		if err = c.producer.CommitTxn(); err == nil {
			*c.done++
			fmt.Println("copied", *c.done)
			if *c.done == c.records {
				c.cancel()
			}
			return nil
		}
		if c.producer.TxnStatus()&sarama.ProducerTxnFlagFatalError != 0 || time.Now().After(until) {
			check(err)
		}
		if c.producer.TxnStatus()&sarama.ProducerTxnFlagAbortableError == 0 {
			err = nil // the commit may be tried again
		}
	}
	for c.producer.AbortTxn() != nil {
		if c.producer.TxnStatus()&sarama.ProducerTxnFlagFatalError != 0 {
			check(err)
		}
	}
	return err
}

func main() {
	a := os.Args
	records, err := strconv.Atoi(a[6])
	check(err)
	write(a[1], a[2], records)
	c, brokers := config(a[1])
	c.Producer.Transaction.ID = a[5]
	producer, err := sarama.NewSyncProducer(brokers, c)
	check(err)
	done := 0
	running, cancel := context.WithCancel(context.Background())
	handler := copier{a[3], a[4], producer, &done, records, make(chan struct{}, 1), cancel}
	for done < records {
		c, brokers := config(a[1])
		group, err := sarama.NewConsumerGroup(brokers, a[4], c)
		check(err)
		if err := group.Consume(running, []string{a[2]}, handler); err != nil && done < records {
			fmt.Fprintln(os.Stderr, "the session ended:", err)
		}
		group.Close()
	}
	check(producer.Close())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
