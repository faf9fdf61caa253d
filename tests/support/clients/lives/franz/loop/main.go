// A loop of franz-go (see tests/campaign/transactions/__init__.py): loop ACCESS INPUT OUTPUT GROUP ID LIFE ABORTED
package main

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"life/access"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	recordsMax = 1000
	wait       = 200 * time.Millisecond
	endsWithin = 60 * time.Second
	cannotGoOn = 3
)

func session(file, source, group, id string) *kgo.GroupTransactSession {
	options, err := access.Options(file)
	check(err)
	found, err := kgo.NewGroupTransactSession(append(options,
		kgo.TransactionalID(id), kgo.TransactionTimeout(12*time.Second), kgo.RecordDeliveryTimeout(10*time.Second),
		kgo.ProducerLinger(20*time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(source), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(time.Second), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.Balancers(kgo.RangeBalancer()), kgo.MetadataMaxAge(5*time.Second),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets())...)
	check(err)
	return found
}

func batch(session *kgo.GroupTransactSession) []*kgo.Record {
	until, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	var found []*kgo.Record
	for len(found) < recordsMax && until.Err() == nil {
		found = append(found, session.PollRecords(until, recordsMax-len(found)).Records()...)
	}
	return found
}

// The session itself aborts where partitions were revoked, and goes on from the committed positions after an abort.
func copied(session *kgo.GroupTransactSession, records []*kgo.Record, sink, label string, meansToAbort bool) {
	fate, end := "c", kgo.TryCommit
	if meansToAbort {
		fate, end = "a", kgo.TryAbort
	}
	head := []byte(fmt.Sprintf("%s %d %s ", fate, len(records), label))
	began := time.Now()
	check(session.Begin())
	failed := kgo.AbortingFirstErrPromise(session.Client())
	for _, record := range records {
		value := bytes.Join([][]byte{head, record.Value}, nil)
		made := &kgo.Record{Topic: sink, Partition: record.Partition, Value: value}
		session.Produce(context.Background(), made, failed.Promise())
	}
	if err := failed.Err(); err != nil {
		fmt.Fprintln(os.Stderr, label, err)
		end = kgo.TryAbort
	}
	within, cancel := context.WithTimeout(context.Background(), endsWithin)
	defer cancel()
	committed, err := session.End(within, end)
	check(err)
	outcome := "aborted"
	if committed {
		outcome = "committed"
	}
	fmt.Println(outcome, len(records), time.Since(began).Milliseconds())
}

func main() {
	a := os.Args
	aborted, err := strconv.Atoi(a[7])
	check(err)
	var ending atomic.Bool
	go func() {
		io.Copy(io.Discard, os.Stdin)
		ending.Store(true)
	}()
	seed := fnv.New64()
	fmt.Fprint(seed, a[5], a[6])
	random := rand.New(rand.NewSource(int64(seed.Sum64())))
	session := session(a[1], a[2], a[4], a[5])
	for number := 1; !ending.Load(); {
		records := batch(session)
		if len(records) == 0 {
			continue
		}
		copied(session, records, a[3], fmt.Sprintf("%s.%s.%d", a[5], a[6], number), random.Intn(1000) < aborted)
		number++
	}
	session.Close()
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot go on:", err)
		os.Exit(cannotGoOn)
	}
}
