// Produces the lines of a file with franz-go: one topic, one codec, one batch size. Used by tests/support/kafka/record_batches.py.
//
//	franz 127.0.0.1:9092 topic zstd 65536 lines.txt
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	codec := map[string]kgo.CompressionCodec{
		"none":   kgo.NoCompression(),
		"gzip":   kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(),
		"lz4":    kgo.Lz4Compression(),
		"zstd":   kgo.ZstdCompression(),
	}[os.Args[3]]
	size, err := strconv.Atoi(os.Args[4])
	check(err)
	lines, err := os.ReadFile(os.Args[5])
	check(err)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.DefaultProduceTopic(os.Args[2]),
		kgo.ProducerBatchCompression(codec),
		kgo.ProducerBatchMaxBytes(int32(size)),
		kgo.ProducerLinger(time.Second),
		kgo.MaxBufferedRecords(1<<20),
	)
	check(err)
	defer client.Close()
	for number, line := range bytes.Split(bytes.TrimRight(lines, "\n"), []byte("\n")) {
		key := []byte(strconv.Itoa(number))
		headers := []kgo.RecordHeader{{Key: "n", Value: key}}
		client.Produce(context.Background(), &kgo.Record{Key: key, Value: line, Headers: headers}, func(_ *kgo.Record, err error) { check(err) })
	}
	check(client.Flush(context.Background()))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
