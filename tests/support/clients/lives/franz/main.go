// A life of franz-go (see ../__init__.py).
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type access struct {
	Bootstrap string
	Login     *struct {
		User, Password string
		CaFile         string `json:"ca_file"`
	}
}

func options(file string) []kgo.Opt {
	text, err := os.ReadFile(file)
	check(err)
	var given access
	check(json.Unmarshal(text, &given))
	found := []kgo.Opt{kgo.SeedBrokers(strings.Split(given.Bootstrap, ",")...), kgo.MetadataMinAge(100 * time.Millisecond)}
	if given.Login == nil {
		return found
	}
	pem, err := os.ReadFile(given.Login.CaFile)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	mechanism := scram.Auth{User: given.Login.User, Pass: given.Login.Password}.AsSha512Mechanism()
	return append(found, kgo.DialTLSConfig(&tls.Config{RootCAs: roots}), kgo.SASL(mechanism))
}

func write(file, topic string, records int) {
	client, err := kgo.NewClient(append(options(file), kgo.DefaultProduceTopic(topic))...)
	check(err)
	defer client.Close()
	for n := 0; n < records; n++ {
		value := strconv.Itoa(n)
		client.Produce(context.Background(), kgo.StringRecord(value), func(_ *kgo.Record, err error) {
			check(err)
			fmt.Println("acked " + value)
		})
		time.Sleep(10 * time.Millisecond)
	}
	check(client.Flush(context.Background()))
}

func copyAll(file, topic, to, group, id string, records int) {
	session, err := kgo.NewGroupTransactSession(append(options(file),
		kgo.TransactionalID(id), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DefaultProduceTopic(to),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets())...)
	check(err)
	defer session.Close()
	for done := 0; done < records; {
		wait, cancel := context.WithTimeout(context.Background(), time.Second)
		found := session.PollRecords(wait, 20).Records()
		cancel()
		if len(found) == 0 {
			continue
		}
		check(session.Begin())
		failed := kgo.AbortingFirstErrPromise(session.Client())
		for _, record := range found {
			session.Produce(context.Background(), kgo.StringRecord(string(record.Value)), failed.Promise())
		}
		committed, err := session.End(context.Background(), failed.Err() == nil)
		check(err)
		if committed {
			done += len(found)
			fmt.Println("copied", done)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func main() {
	a := os.Args
	records, err := strconv.Atoi(a[6])
	check(err)
	write(a[1], a[2], records)
	copyAll(a[1], a[2], a[3], a[4], a[5], records)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
