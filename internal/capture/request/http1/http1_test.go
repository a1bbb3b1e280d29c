package http1_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/request/exchange"
	"github.com/inferscope/inferscope/internal/capture/request/http1"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// maxContent is how many bytes of a prompt or an answer are asked for.
const maxContent = 64

// log is a Sink that keeps what it is told.
type log struct {
	begun, ended []*exchange.Exchange
	wrote        []uint64 // times
	frames       uint32
}

func (l *log) End(x *exchange.Exchange) { l.ended = append(l.ended, x) }
func (l *log) Begin(x *exchange.Exchange) {
	l.begun = append(l.begun, x)
	x.Content = exchange.NewContent(maxContent)
}

func (l *log) Wrote(_ *exchange.Exchange, ts uint64, _, frames uint32) {
	l.wrote = append(l.wrote, ts)
	l.frames += frames
}

func whole(ts uint64, text string) exchange.Transfer {
	return exchange.Transfer{TS: ts, TID: 7, Bytes: len(text), Head: []byte(text)}
}

// seen is a transfer as the kernel shows it: 4 KiB of its beginning, 1 KiB of its end.
func seen(ts uint64, text string) exchange.Transfer {
	t := whole(ts, text)
	if len(text) > 4096 {
		rest := t.Head[4096:]
		t.Head, t.Tail = t.Head[:4096], rest[max(0, len(rest)-1024):]
	}
	return t
}

func ask(path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

func chunk(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

const (
	sse    = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
	ndjson = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
	plain  = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
)

// dialect is how a server streams its answer: what it writes, which of these carry content, and what is known then.
type dialect struct {
	name, path, body, header string
	writes                   []string
	content                  []bool
	id, model                string
	in, out, cached          uint32
	source                   exchange.TokenSource
}

var dialects = []dialect{
	{
		name: "vLLM chat with usage", path: "/v1/chat/completions", body: `{"model":"m","stream":true,"messages":[{"role":"user","content":"\"model\":\"x\""}]}`, header: sse,
		writes: []string{
			chunk(
				`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n",
			),
			chunk(`data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"a"}}],"usage":null}` + "\n\n"),
			chunk(
				`data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"reasoning_content":"b"}}]}` + "\n\n" + `data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"c"}}]}` + "\n\n",
			),
			chunk(
				`data: {"id":"chatcmpl-1","choices":[],"usage":{"prompt_tokens":12,"total_tokens":16,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8}}}`+"\n\n",
			) + chunk("data: [DONE]\n\n") + "0\r\n\r\n",
		},
		content: []bool{
			false,
			true,
			true,
			false,
		}, id: "chatcmpl-1", model: "m", in: 12, out: 4, cached: 8, source: exchange.Usage,
	},
	{
		name: "completions without usage", path: "/v1/completions", body: `{"model":"m","stream":true,"prompt":"x"}`, header: sse,
		writes: []string{
			chunk(": ping\n\n"),
			chunk("data: {\"id\":\"cmpl-2\",\"choices\":[{\"text\":\" a\"}]}\n\n"),
			chunk("data: {\"id\":\"cmpl-2\",\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n"),
			"0\r\n\r\n",
		},
		content: []bool{false, true, false, false}, id: "cmpl-2", model: "m", out: 1, source: exchange.Chunks,
	},
	{
		name: "Anthropic", path: "/v1/messages", body: `{"stream":true,"model":"c"}`, header: sse,
		writes: []string{
			chunk(
				"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"model\":\"c\",\"content\":[],\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n",
			),
			chunk(
				"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
			),
			chunk(
				"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n",
			),
			chunk(
				"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n",
			) + "0\r\n\r\n",
		},
		content: []bool{false, false, true, false}, id: "msg_1", model: "c", in: 9, out: 15, source: exchange.Usage,
	},
	{
		name: "llama.cpp with timings", path: "/completion", body: `{"stream":true,"prompt":"x"}`, header: sse,
		writes: []string{
			chunk("data: {\"index\":0,\"content\":\"a\",\"stop\":false}\n\n"),
			chunk(
				"data: {\"index\":0,\"content\":\"\",\"stop\":true,\"timings\":{\"cache_n\":3,\"prompt_n\":5,\"prompt_ms\":1.5,\"predicted_n\":7,\"predicted_ms\":2.25}}\n\n",
			) + "0\r\n\r\n",
		},
		content: []bool{true, false}, in: 8, out: 7, cached: 3, source: exchange.Timings, // 3 of the 8 were cached
	},
	{
		name: "llama.cpp with usage and timings", path: "/v1/chat/completions", body: `{"stream":true}`, header: sse,
		writes: []string{
			chunk("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"id\":\"c\"}\n\n"),
			chunk(
				"data: {\"choices\":[],\"timings\":{\"cache_n\":3,\"prompt_n\":5,\"predicted_n\":7},\"usage\":{\"completion_tokens\":7,\"prompt_tokens\":8,\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\n",
			) + "0\r\n\r\n",
		},
		content: []bool{true, false}, id: "c", in: 8, out: 7, cached: 3, source: exchange.Usage,
	},
	{
		name: "Anthropic with a cache", path: "/v1/messages", body: `{"stream":true,"model":"c"}`, header: sse,
		writes: []string{
			chunk(
				"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_2\",\"model\":\"c\",\"usage\":{\"cache_creation_input_tokens\":4,\"cache_read_input_tokens\":20,\"input_tokens\":9,\"output_tokens\":1}}}\n\n",
			),
			chunk(
				"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n",
			),
			chunk(
				"event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"input_tokens\":9,\"cache_read_input_tokens\":20,\"output_tokens\":15}}\n\n",
			) + "0\r\n\r\n",
		},
		content: []bool{false, true, false}, id: "msg_2", model: "c",
		in: 33, out: 15, cached: 20, source: exchange.Usage,
	},
	{
		name: "Ollama", path: "/api/chat", body: `{"model":"l"}`, header: ndjson,
		writes: []string{
			chunk("{\"model\":\"l\",\"message\":{\"role\":\"assistant\",\"content\":\"a\"},\"done\":false}\n"),
			chunk(
				"{\"model\":\"l\",\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":true,\"prompt_eval_count\":26,\"eval_count\":90}\n",
			) + "0\r\n\r\n",
		},
		content: []bool{true, false}, model: "l", in: 26, out: 90, source: exchange.Timings,
	},
	{
		name: "TGI", path: "/generate_stream", body: `{"inputs":"x"}`, header: sse,
		writes: []string{
			chunk(
				"data:{\"index\":1,\"token\":{\"id\":5,\"text\":\" a\",\"special\":false},\"generated_text\":null}\n\n",
			),
			chunk(
				"data:{\"index\":2,\"token\":{\"id\":6,\"text\":\" b\"},\"generated_text\":\" a b\",\"details\":{\"finish_reason\":\"length\",\"generated_tokens\":2}}\n\n",
			) + "0\r\n\r\n",
		},
		content: []bool{true, true}, out: 2, source: exchange.Usage,
	},
	{
		name: "SGLang", path: "/generate", body: `{"text":"x","stream":true}`, header: sse,
		writes: []string{
			chunk(
				"data: {\"text\":\" a\",\"meta_info\":{\"id\":\"r1\",\"prompt_tokens\":3,\"completion_tokens\":1,\"cached_tokens\":2}}\n\n",
			),
			chunk(
				"data: {\"text\":\" a b\",\"meta_info\":{\"id\":\"r1\",\"prompt_tokens\":3,\"completion_tokens\":2,\"cached_tokens\":2}}\n\n",
			) + chunk("data: [DONE]\n\n") + "0\r\n\r\n",
		},
		content: []bool{true, true}, id: "r1", in: 3, out: 2, cached: 2, source: exchange.Usage,
	},
	{
		name: "OpenAI Responses", path: "/v1/responses", body: `{"model":"m","stream":true,"input":"x"}`, header: sse,
		writes: []string{
			chunk("event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"model\":\"m\",\"usage\":null}}\n\n"),
			chunk("event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n"),
			chunk("event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"usage\":{\"input_tokens\":7,\"input_tokens_details\":{\"cached_tokens\":2},\"output_tokens\":3}}}\n\n") + "0\r\n\r\n",
		},
		content: []bool{false, true, false}, id: "resp_1", model: "m", in: 7, out: 3, cached: 2, source: exchange.Usage,
	},
	{
		name: "OpenAI Responses, a call of a tool", path: "/v1/responses", body: `{"model":"m","stream":true}`, header: sse,
		writes: []string{
			chunk("event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_2\",\"model\":\"m\"}}\n\n"),
			chunk("event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"item\":{\"type\":\"function_call\",\"arguments\":\"\"}}\n\n"),
			chunk("event: response.function_call_arguments.delta\ndata: {\"type\":\"response.function_call_arguments.delta\",\"delta\":\"{\"}\n\n"),
			chunk("event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_2\",\"usage\":{\"input_tokens\":7,\"output_tokens\":3}}}\n\n") + "0\r\n\r\n",
		},
		content: []bool{false, false, true, false}, id: "resp_2", model: "m", in: 7, out: 3, source: exchange.Usage,
	},
	{
		name: "a refusal", path: "/v1/chat/completions", body: `{"model":"m","stream":true}`, header: sse,
		writes: []string{
			chunk("data: {\"id\":\"c\",\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null,\"refusal\":null}}]}\n\n"),
			chunk("data: {\"id\":\"c\",\"choices\":[{\"delta\":{\"refusal\":\"No\"}}]}\n\n"),
			chunk("data: [DONE]\n\n") + "0\r\n\r\n",
		},
		content: []bool{false, true, false}, id: "c", model: "m", out: 1, source: exchange.Chunks,
	},
	{
		name: "Triton", path: "/v2/models/ensemble_12345/generate_stream", body: `{"text_input":"x","stream":true}`, header: sse,
		writes:  []string{chunk("data: {\"model_name\":\"e\",\"text_output\":\"a\"}\n\n"), "0\r\n\r\n"},
		content: []bool{true, false}, out: 1, source: exchange.Chunks,
	},
}

// run feeds the exchange of a dialect, with each write at a time of its own.
func (d *dialect) run(c *http1.Conn, at uint64) {
	c.Received(seen(at, ask(d.path, d.body)))
	c.Sent(seen(at+10, d.header))
	for i, w := range d.writes {
		c.Sent(seen(at+100+uint64(i), w))
	}
}

func (d *dialect) check(t *testing.T, x *exchange.Exchange, at uint64) {
	t.Helper()
	first, last := uint64(0), uint64(0)
	for i, content := range d.content {
		if content && first == 0 {
			first = at + 100 + uint64(i)
		}
		if content {
			last = at + 100 + uint64(i)
		}
	}
	if x.Received != at || x.FirstByte != at+10 || x.FirstToken != first || x.LastToken != last ||
		x.End != at+100+uint64(len(d.writes)-1) {
		t.Errorf("%s: times %d %d %d %d %d", d.name, x.Received, x.FirstByte, x.FirstToken, x.LastToken, x.End)
	}
	if x.ID != d.id || x.Model != d.model || x.InputTokens != d.in || x.OutputTokens != d.out ||
		x.CachedTokens != d.cached ||
		x.TokenSource != d.source {
		t.Errorf("%s: id %q model %q tokens %d %d %d by %q",
			d.name, x.ID, x.Model, x.InputTokens, x.OutputTokens, x.CachedTokens, x.TokenSource)
	}
	if x.Outcome != exchange.Complete || x.Status != 200 || !x.Streamed || x.Unreadable || x.Method != "POST" ||
		x.Route != d.path {
		t.Errorf("%s: %+v", d.name, *x)
	}
}

// TestDialects: all servers' answers over one connection that is kept alive.
func TestDialects(t *testing.T) {
	l := &log{}
	c := http1.New(l)
	for i := range dialects {
		dialects[i].run(c, uint64(1000*(i+1)))
	}
	if len(l.ended) != len(dialects) {
		t.Fatalf("%d of %d exchanges ended", len(l.ended), len(dialects))
	}
	for i := range dialects {
		dialects[i].check(t, l.ended[i], uint64(1000*(i+1)))
	}
	if !c.Idle() {
		t.Error("not idle at the end")
	}
}

// TestSplits: however transfers are cut, numbers are the same.
func TestSplits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		l := &log{}
		c := http1.New(l)
		for i := range dialects {
			d := &dialects[i]
			pieces(r, ask(d.path, d.body), func(p string) { c.Received(whole(1, p)) })
			pieces(r, d.header+strings.Join(d.writes, ""), func(p string) { c.Sent(whole(2, p)) })
		}
		if len(l.ended) != len(dialects) {
			t.Fatalf("%d exchanges", len(l.ended))
		}
		for i, x := range l.ended {
			d := &dialects[i]
			if x.InputTokens != d.in || x.OutputTokens != d.out || x.TokenSource != d.source || x.ID != d.id ||
				x.Outcome != exchange.Complete {
				t.Fatalf("%s: %+v", d.name, *x)
			}
		}
	}
}

func pieces(r *rand.Rand, text string, f func(string)) {
	for len(text) > 0 {
		n := 1 + r.IntN(min(len(text), 200))
		f(text[:n])
		text = text[n:]
	}
}

// TestPipelined: two requests in one transfer, both answers in another.
func TestPipelined(t *testing.T) {
	l := &log{}
	c := http1.New(l)
	c.Received(whole(1, ask("/v1/completions", `{"model":"a"}`)+ask("/v1/completions", `{"model":"b"}`)))
	body := `{"id":"cmpl-9","usage":{"prompt_tokens":3,"completion_tokens":2}}`
	c.Sent(whole(5, fmt.Sprintf(plain, len(body), body)+sse+dialects[1].writes[1]))
	c.Sent(whole(6, "0\r\n\r\n"))
	if len(l.ended) != 2 || l.ended[0].OutputTokens != 2 || l.ended[0].FirstToken != 0 || l.ended[0].Frames != 0 {
		t.Fatalf("%+v", l.ended)
	}
	if x := l.ended[1]; x.Model != "b" || x.FirstToken != 5 || x.Frames != 1 || x.End != 6 {
		t.Errorf("%+v", *x)
	}
}

// TestLongDocument: the usage stands at the end of an answer whose middle is not seen, and a prompt that looks like one
// does not deceive.
func TestLongDocument(t *testing.T) {
	l := &log{}
	c := http1.New(l)
	prompt := strings.Repeat("x", 9000)
	c.Received(seen(1, ask("/v1/completions", `{"model":"m","prompt":"`+prompt+`"}`)))
	body := `{"id":"cmpl-1","model":"m","choices":[{"text":"` + strings.Repeat("y",
		20000) + ` \"completion_tokens\":9"}],"usage":{"prompt_tokens":900,"completion_tokens":2000}}`
	c.Sent(seen(3, fmt.Sprintf(plain, len(body), body)))
	c.Received(seen(4, ask("/v1/completions", `{"model":"n"}`)))
	c.Sent(seen(5, fmt.Sprintf(plain, 2, "{}")))
	if len(l.ended) != 2 {
		t.Fatalf("%d ended", len(l.ended))
	}
	if x := l.ended[0]; x.InputTokens != 900 || x.OutputTokens != 2000 || x.TokenSource != exchange.Usage || x.Streamed ||
		x.FirstToken != 0 {
		t.Errorf("%+v", *x)
	}
	if x := l.ended[1]; x.Model != "n" || x.Outcome != exchange.Complete {
		t.Errorf("%+v", *x)
	}
}

// TestEnds: errors, clients that leave, answers until the end of the connection, interim answers.
func TestEnds(t *testing.T) {
	l := &log{}
	c := http1.New(l)
	c.Received(whole(1, ask("/v1/completions", "{}")))
	c.Sent(whole(2, "HTTP/1.1 100 Continue\r\n\r\n"))
	c.Sent(whole(3, "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}"))
	c.Received(whole(4, ask("/v1/completions", "{}")))
	c.Sent(whole(5, sse+dialects[1].writes[1]))
	c.PeerClosed(6)
	c.Closed(7)
	d := http1.New(l)
	d.Received(whole(1, ask("/v1/completions?key=secret", "{}")))
	d.Sent(
		whole(
			2,
			"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"choices\":[{\"text\":\"a\"}]}\n\n",
		),
	)
	d.Closed(9)
	if len(l.ended) != 3 {
		t.Fatalf("%d ended", len(l.ended))
	}
	if x := l.ended[0]; x.Status != 429 || x.FirstByte != 3 || x.Outcome != exchange.Complete {
		t.Errorf("%+v", *x)
	}
	if x := l.ended[1]; x.Outcome != exchange.Aborted || x.FirstToken != 5 || x.End != 7 {
		t.Errorf("%+v", *x)
	}
	if x := l.ended[2]; x.Outcome != exchange.Complete || x.End != 9 || x.Route != "/v1/completions" || x.Frames != 1 {
		t.Errorf("%+v", *x)
	}
}

// TestMidStream: an answer whose request was not seen is nobody's.
func TestMidStream(t *testing.T) {
	l := &log{}
	c := http1.New(l)
	for i, w := range dialects[0].writes {
		c.Sent(seen(uint64(i), w))
	}
	if len(l.begun)+len(l.wrote)+len(l.ended) != 0 {
		t.Errorf("something was invented: %+v", l)
	}
	dialects[0].run(c, 1000)
	if len(l.ended) != 1 {
		t.Fatalf("%d ended", len(l.ended))
	}
	dialects[0].check(t, l.ended[0], 1000)
}

// TestGapInStream: a write with many parts, of which most are not seen, costs the count and not what follows.
func TestGapInStream(t *testing.T) {
	l := &log{}
	c := http1.New(l)
	d := &dialects[0]
	c.Received(seen(1, ask(d.path, d.body)))
	c.Sent(seen(2, d.header))
	c.Sent(seen(3, strings.Repeat(d.writes[1], 200)))
	c.Sent(seen(4, d.writes[1]))
	c.Sent(seen(5, d.writes[3]))
	d.run(c, 1000)
	if len(l.ended) != 2 {
		t.Fatalf("%d ended", len(l.ended))
	}
	if x := l.ended[0]; !x.Unreadable || x.FirstToken != 3 || x.LastToken != 4 || x.OutputTokens != 4 || x.End != 5 {
		t.Errorf("%+v", *x)
	}
	d.check(t, l.ended[1], 1000)
}

// TestRoutes: what may be somebody's is not kept.
func TestRoutes(t *testing.T) {
	for target, want := range map[string]string{
		"/v1/chat/completions":                        "/v1/chat/completions",
		"/v1/completions?api_key=s3cr3t#x":            "/v1/completions",
		"http://host/v1/completions":                  "/v1/completions",
		"/users/1234567/ask":                          "/users/*/ask",
		"/t/abcdefghijklmnopqrstuvwxyzabcdefghijklm/": "/t/*/",
		"/v2/models/llama-70b-20240101/infer":         "/v2/models/llama-70b-20240101/infer",
		"/\x1b[2J":                                    "/?[2J",
		"/1/2/3/4/5/6/7/8/9/10":                       "/1/2/3/4/5/6/7/*",
	} {
		l := &log{}
		http1.New(l).Received(whole(1, ask(target, "{}")))
		if len(l.begun) != 1 || l.begun[0].Route != want {
			t.Errorf("%q became %+v", target, l.begun)
		}
	}
}

// FuzzConn feeds arbitrary transfers: nothing panics, an exchange ends once, and its times are in order.
func FuzzConn(f *testing.F) {
	for i := range dialects {
		d := &dialects[i]
		f.Add([]byte(ask(d.path, d.body)), []byte(d.header+strings.Join(d.writes, "")), uint64(i), uint16(0))
	}
	fuzzing.Run(f, func(t *testing.T, in, out []byte, seed uint64, missing uint16) {
		l := &log{}
		c := http1.New(l)
		r := rand.New(rand.NewPCG(seed, 1))
		at := uint64(1)
		for len(in)+len(out) > 0 {
			at++
			from, feed := &in, c.Received
			if len(in) == 0 || len(out) > 0 && r.IntN(2) == 0 {
				from, feed = &out, c.Sent
			}
			n := 1 + r.IntN(len(*from))
			t := exchange.Transfer{TS: at, Bytes: n, Head: (*from)[:n]}
			if r.IntN(4) == 0 {
				t.Bytes += int(missing)
				t.Head, t.Tail = t.Head[:n/2], t.Head[n/2:]
			}
			feed(t)
			*from = (*from)[n:]
		}
		c.Closed(at + 1)
		ended := map[*exchange.Exchange]bool{}
		for _, x := range l.ended {
			if ended[x] || x.Outcome == exchange.Open {
				t.Fatalf("ended twice or not: %+v", *x)
			}
			ended[x] = true
			if x.FirstToken > x.LastToken || x.LastToken > x.End || x.Received > x.End ||
				(x.FirstToken == 0) != (x.Frames == 0) {
				t.Fatalf("times out of order: %+v", *x)
			}
			if len(x.Model) > 200 || len(x.Route) > 400 || len(x.ID) > 200 || len(x.Trace) > 200 {
				t.Fatalf("names without bounds: %+v", *x)
			}
			if most := maxContent + exchange.Margin; len(x.Content.Prompt.Bytes) > most || len(x.Content.Answer.Bytes) > most {
				t.Fatalf("content without bounds: %+v", *x.Content)
			}
		}
		if len(ended) != len(l.begun) || !c.Idle() {
			t.Fatalf("%d of %d ended", len(ended), len(l.begun))
		}
	})
}
