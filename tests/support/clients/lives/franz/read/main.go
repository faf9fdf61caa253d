// Reads a topic's partitions from their first offsets with franz-go until it has COUNT records, a line each:
// read ACCESS TOPIC PARTITIONS ISOLATION COUNT
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"

	"life/access"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	a := os.Args
	partitions, err := strconv.Atoi(a[3])
	check(err)
	count, err := strconv.Atoi(a[5])
	check(err)
	isolation := kgo.ReadUncommitted()
	if a[4] == "read_committed" {
		isolation = kgo.ReadCommitted()
	}
	from := map[int32]kgo.Offset{}
	for partition := 0; partition < partitions; partition++ {
		from[int32(partition)] = kgo.NewOffset().At(0)
	}
	options, err := access.Options(a[1])
	check(err)
	client, err := kgo.NewClient(append(options,
		kgo.FetchIsolationLevel(isolation), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{a[2]: from}))...)
	check(err)
	defer client.Close()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for count > 0 {
		found := client.PollFetches(context.Background())
		check(found.Err())
		for _, record := range found.Records() {
			fmt.Fprintf(out, "%d %d %s\n", record.Partition, record.Offset, record.Value)
			count--
		}
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
