package request

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/inferscope/inferscope/bpf"
)

// BenchmarkRecord says what the reader spends on a chunk of one of 256 streams, and so how many it takes a second.
func BenchmarkRecord(b *testing.B) {
	const streams, chunks = 256, 100
	received, sent := bpf.RequestRequestKindREQUEST_RECEIVED, bpf.RequestRequestKindREQUEST_SENT
	question := transferOf(received, 0, "POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
	header := transferOf(sent, 0,
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	part := `data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1790000000,"model":"m",` +
		`"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	chunk := transferOf(sent, 0, fmt.Sprintf("%x\r\n%s\r\n", len(part), part))
	end := transferOf(sent, 0, "0\r\n\r\n")
	f := newFeeding(Content{})
	put := func(record []byte) {
		for i := range streams {
			(*bpf.RequestRequestRecord)(unsafe.Pointer(&record[0])).Socket = uint64(i + 1)
			f.record(record)
		}
	}
	for b.Loop() {
		put(question)
		put(header)
		for range chunks {
			put(chunk)
		}
		put(end)
		if len(f.fresh) != streams || f.fresh[0].Parts != chunks {
			b.Fatalf("%d requests: %+v", len(f.fresh), f.fresh[0])
		}
		f.settle(streams)
		f.ended, f.ready = f.ended[:0], f.ready[:0]
	}
	records := float64(b.N * streams * (chunks + 3))
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/records, "ns/record")
	b.ReportMetric(records/b.Elapsed().Seconds(), "records/s")
}
