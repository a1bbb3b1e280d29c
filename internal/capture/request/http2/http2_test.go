package http2_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/inferscope/inferscope/internal/capture/request/exchange"
	h2 "github.com/inferscope/inferscope/internal/capture/request/http2"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// log is a Sink that keeps what it is told.
type log struct {
	begun, ended []*exchange.Exchange
	frames       uint32
}

func (l *log) Begin(x *exchange.Exchange) { l.begun = append(l.begun, x) }

func (l *log) End(x *exchange.Exchange)                               { l.ended = append(l.ended, x) }
func (l *log) Wrote(_ *exchange.Exchange, _ uint64, _, frames uint32) { l.frames += frames }

// peer writes the frames of one side.
type peer struct {
	bytes.Buffer
	framer *http2.Framer
	block  bytes.Buffer
	hpack  *hpack.Encoder
}

func newPeer() *peer {
	p := &peer{}
	p.framer, p.hpack = http2.NewFramer(&p.Buffer, nil), hpack.NewEncoder(&p.block)
	return p
}

func (p *peer) headers(t testing.TB, id uint32, end bool, fields ...string) {
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		must.NoError(t, p.hpack.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	err := p.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: p.block.Bytes(), EndStream: end,
		EndHeaders: true, PadLength: 3, Priority: http2.PriorityParam{Weight: 7},
	})
	must.NoError(t, err)
}

func (p *peer) data(t testing.TB, id uint32, end bool, b []byte) {
	must.NoError(t, p.framer.WriteDataPadded(id, end, b, make([]byte, id%3)))
}

// transfer returns what was written since the last call.
func (p *peer) transfer(ts uint64) exchange.Transfer {
	b := bytes.Clone(p.Bytes())
	p.Reset()
	return exchange.Transfer{TS: ts, Bytes: len(b), Head: b}
}

func message(n int) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(n)), make([]byte, n)...)
}

const request = "/x.Y/Z"

func ask(t testing.TB, p *peer, id uint32, path string) {
	p.headers(t, id, false, ":method", "POST", ":scheme", "http", ":path", path, "te", "trailers", "content-type", "application/grpc")
	p.data(t, id, true, message(8))
}

// TestSplits: whatever pieces the frames come in, the same is read.
func TestSplits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		in, out, l := newPeer(), newPeer(), &log{}
		c := h2.New(l)
		in.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
		_ = in.framer.WriteSettings()
		_ = out.framer.WriteSettings()
		const streams, tokens = 5, 7
		for i := range uint32(streams) {
			ask(t, in, 2*i+1, request)
			out.headers(t, 2*i+1, false, ":status", "200", "content-type", "application/grpc")
		}
		for range tokens {
			for i := range uint32(streams) {
				out.data(t, 2*i+1, false, message(3))
			}
			_ = out.framer.WritePing(true, [8]byte{})
		}
		for i := range uint32(streams) {
			out.headers(t, 2*i+1, true, "grpc-status", "0")
		}
		feed := func(to func(exchange.Transfer), t exchange.Transfer) {
			for b := t.Head; len(b) > 0; {
				n := min(len(b), 1+r.IntN(1+r.IntN(300)))
				to(exchange.Transfer{TS: t.TS, Bytes: n, Head: b[:n], More: n < len(b)})
				b = b[n:]
			}
		}
		feed(c.Received, in.transfer(10))
		feed(c.Sent, out.transfer(20))
		if len(l.ended) != streams || l.frames != streams*tokens || !c.Idle() || c.Strange() {
			t.Fatalf("round %d: %d requests, %d messages", round, len(l.ended), l.frames)
		}
		for _, x := range l.ended {
			if x.Route != request || x.Status != 200 || x.Received != 10 || x.FirstToken != 20 || x.Outcome != exchange.Complete ||
				x.OutputTokens != tokens || x.Unreadable {
				t.Fatalf("round %d: %+v", round, x)
			}
		}
	}
}

// TestTableSize: a client that has read the server's settings before its first request begins that with the size of the
// table.
func TestTableSize(t *testing.T) {
	for _, preface := range []string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""} {
		in, l := newPeer(), &log{}
		c := h2.New(l)
		in.WriteString(preface)
		for i := range 2 {
			in.hpack.SetMaxDynamicTableSize(uint32(i) << 10)
			ask(t, in, uint32(2*i+1), request)
		}
		c.Received(in.transfer(10))
		if len(l.begun) != 2 || l.begun[0].Route != request || l.begun[1].Route != request {
			t.Errorf("behind preface %q: %+v", preface, l.begun)
		}
	}
}

// TestUnary: an answer that comes as a whole is no stream, so that it has no time to a first token.
func TestUnary(t *testing.T) {
	in, out, l := newPeer(), newPeer(), &log{}
	c := h2.New(l)
	in.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	ask(t, in, 1, request)
	c.Received(in.transfer(10))
	out.headers(t, 1, false, ":status", "200", "content-type", "application/grpc")
	out.data(t, 1, false, message(100))
	out.headers(t, 1, true, "grpc-status", "0")
	c.Sent(out.transfer(20))
	if x := l.ended[0]; x.Streamed || x.FirstToken != 0 || l.frames != 0 || x.End != 20 || x.TokenSource != "" {
		t.Errorf("%+v", x)
	}
}

// TestUnknownNames: of a connection that was in use, what the client has said before is not known; what it says then
// is. Where bytes of a header are lost, what was known is not taken for something else.
func TestUnknownNames(t *testing.T) {
	in, l := newPeer(), &log{}
	ask(t, in, 1, "/before/1")
	ask(t, in, 3, "/before/2")
	in.transfer(1)
	c := h2.New(l)
	id := uint32(5)
	want := func(route string) {
		t.Helper()
		if x := l.begun[len(l.begun)-1]; x.Route != route || x.Method != "POST" {
			t.Errorf("%+v, want %s", x, route)
		}
		id += 2
	}
	ask(t, in, id, "/before/1")
	c.Received(in.transfer(2))
	want(h2.UnknownRoute)
	ask(t, in, id, "/after/1")
	c.Received(in.transfer(3))
	want("/after/1")
	ask(t, in, id, "/before/2")
	c.Received(in.transfer(4))
	want(h2.UnknownRoute)
	ask(t, in, id, "/after/1")
	c.Received(in.transfer(5))
	want("/after/1")

	ask(t, in, id, "/lost/1")
	b := in.transfer(6)
	b.Head = b.Head[:12]
	c.Received(b)
	id += 2
	ask(t, in, id, "/after/1")
	c.Received(in.transfer(7))
	want(h2.UnknownRoute)
	ask(t, in, id, "/lost/1")
	c.Received(in.transfer(8))
	want(h2.UnknownRoute)
	if len(l.begun) != 6 {
		t.Errorf("%d requests", len(l.begun))
	}
}

// TestClient: a connection on which the process asks, not answers, is none of a server.
func TestClient(t *testing.T) {
	in, l := newPeer(), &log{}
	c := h2.New(l)
	in.headers(t, 1, false, ":status", "200", "content-type", "application/grpc")
	c.Received(in.transfer(1))
	if !c.Strange() || len(l.begun) > 0 {
		t.Error("its answers are taken for requests")
	}
}

// TestGaps: bytes of messages that were not seen do not change how many there are.
func TestGaps(t *testing.T) {
	in, out, l := newPeer(), newPeer(), &log{}
	c := h2.New(l)
	in.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	ask(t, in, 3, request)
	c.Received(in.transfer(10))
	out.headers(t, 3, false, ":status", "200", "content-type", "application/grpc")
	c.Sent(out.transfer(20))
	for range 4 {
		out.data(t, 3, false, message(10_000))
		b := out.transfer(30)
		b.Head, b.Tail = b.Head[:4096], b.Head[len(b.Head)-1024:]
		c.Sent(b)
	}
	out.headers(t, 3, true, "grpc-status", "13")
	c.Sent(out.transfer(40))
	if x := l.ended[0]; x.Frames != 4 || x.Status != 500 || x.Unreadable || x.Outcome != exchange.Complete {
		t.Errorf("%+v", x)
	}
}

func FuzzConn(f *testing.F) {
	in := newPeer()
	in.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	ask(f, in, 1, request)
	out := newPeer()
	out.headers(f, 1, false, ":status", "200", "content-type", "application/grpc")
	out.data(f, 1, true, message(3))
	f.Add(in.transfer(0).Head, out.transfer(0).Head, uint16(7), uint16(3))
	f.Fuzz(func(t *testing.T, in, out []byte, split, missing uint16) {
		l := &log{}
		c := h2.New(l)
		for i := 0; i < max(len(in), len(out)); i += int(split) + 1 {
			for dir, b := range [][]byte{in, out} {
				part := b[min(i, len(b)):min(i+int(split)+1, len(b))]
				transfer := exchange.Transfer{TS: uint64(i + 1), Bytes: len(part) + int(missing%3), Head: part, More: i%5 == 4}
				if dir == 0 {
					c.Received(transfer)
				} else {
					c.Sent(transfer)
				}
			}
		}
		c.Closed(1 << 40)
		if !c.Idle() || len(l.begun) != len(l.ended) {
			t.Errorf("%d requests began and %d ended", len(l.begun), len(l.ended))
		}
		for _, x := range l.ended {
			if x.Outcome == exchange.Open || x.FirstToken > x.LastToken || x.Frames < x.Writes {
				t.Errorf("%+v", x)
			}
		}
	})
}

// TestRestIsLost: the rest of a transfer is lost. What comes next begins with a frame, and is read.
func TestRestIsLost(t *testing.T) {
	in, out, l := newPeer(), newPeer(), &log{}
	c := h2.New(l)
	in.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	_ = in.framer.WriteSettings()
	answer := func(id uint32, lost bool) {
		ask(t, in, id, request)
		received := in.transfer(uint64(id) * 10)
		received.More = lost
		c.Received(received)
		if lost {
			c.Gap()
			return
		}
		out.headers(t, id, false, ":status", "200", "content-type", "application/grpc")
		out.data(t, id, false, message(3))
		out.headers(t, id, true, "grpc-status", "0")
		c.Sent(out.transfer(uint64(id)*10 + 1))
	}
	answer(1, false)
	answer(3, true)
	answer(5, false)
	var ends []exchange.Outcome
	for _, x := range l.ended {
		ends = append(ends, x.Outcome)
	}
	if !slices.Equal(ends, []exchange.Outcome{exchange.Complete, exchange.Unbounded, exchange.Complete}) {
		t.Errorf("they end as %q", ends)
	}
}
