// A life of franz-go (see ../__init__.py).
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"life/access"

	"github.com/twmb/franz-go/pkg/kgo"
)

func options(file string) []kgo.Opt {
	found, err := access.Options(file)
	check(err)
	return found
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
