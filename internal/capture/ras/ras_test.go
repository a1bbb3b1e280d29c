package ras

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// serve answers one client as NCCL's RAS thread does, by the commands of rasClientEventLoop: in JSON where it knows
// that, else in text.
func serve(t *testing.T, text, asJSON string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		answer := text
		for lines := bufio.NewScanner(c); lines.Scan(); {
			switch line := lines.Text(); {
			case strings.HasPrefix(line, "client protocol "):
				_, _ = io.WriteString(c, "SERVER PROTOCOL 2\n")
			case strings.HasPrefix(line, "timeout "):
				_, _ = io.WriteString(c, "OK\n")
			case line == "set format json" && asJSON != "":
				answer = asJSON
				_, _ = io.WriteString(c, "OK\n")
			case line == "verbose status":
				_, _ = io.WriteString(c, answer)
				return
			default:
				_, _ = io.WriteString(c, "ERROR: Unknown command "+line+"\n")
			}
		}
	}()
	return l.Addr().String()
}

func read(t *testing.T, address string) (*recording.RAS, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return Read(ctx, address)
}

func file(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	must.NoError(t, err)
	return string(text)
}

// TestJSON: the sample of NCCL's documentation.
func TestJSON(t *testing.T) {
	got, err := read(t, serve(t, "", file(t, "status.json")))
	must.NoError(t, err)
	want := &recording.RAS{Version: "2.29.1", Communicators: []recording.RASCommunicator{{
		Hash: "ae94423cfbb2ef4a", Size: 2,
		Ranks: []recording.RASRank{{
			Rank: 0, Host: "172.16.64.245", PID: 1524344,
			Counts: map[string]uint64{"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 0},
		}},
		Missing: []recording.RASRank{{Rank: 1, Host: "172.16.64.245", PID: 1524345, GPU: 1}},
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestText: the samples of NCCL's documentation, for a server that knows no JSON.
func TestText(t *testing.T) {
	got, err := read(t, serve(t, file(t, "status.txt"), ""))
	must.NoError(t, err)
	late := func(rank int, pid uint32, gpu int, count uint64) recording.RASRank {
		return recording.RASRank{
			Rank: rank, Host: "172.16.64.210", PID: pid, GPU: gpu, Counts: map[string]uint64{"AllReduce": count},
		}
	}
	want := &recording.RAS{Version: "2.27.3", Communicators: []recording.RASCommunicator{
		{Hash: "cf264af53edbe986", Missing: []recording.RASRank{{Rank: 21, Host: "172.16.64.213", PID: 3487984, GPU: 5}}},
		{Hash: "0123456789abcdef", Missing: []recording.RASRank{{Rank: 2}, {Rank: 4}, {Rank: 5}}},
		{
			Hash: "27a079b828ff1a75", Most: map[string]uint64{"AllReduce": 6650},
			Ranks: []recording.RASRank{
				late(0, 483072, 0, 6649), late(2, 483074, 2, 6649), late(7, 483079, 1, 12), late(8, 483080, 3, 0),
			},
		},
		// Of which it is only known that ranks have another status.
		{Hash: "9e17999afaa87dbb"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestNoRAS: who does not answer as RAS does is an error, and nobody is waited for beyond the time given.
func TestNoRAS(t *testing.T) {
	for name, text := range map[string]string{
		"another server": "HTTP/1.1 400 Bad Request\n",
		"JSON cut off":   file(t, "status.json")[:300],
		"too many":       `{"communicators": [` + strings.Repeat(`{},`, maxCommunicators) + `{}]}`,
	} {
		asJSON := text
		if name == "another server" {
			asJSON = ""
		}
		if got, err := read(t, serve(t, text, asJSON)); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // which accepts, and says nothing
	must.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Read(ctx, l.Addr().String()); err == nil {
		t.Error("nobody answered, and that was no error")
	}
	_ = l.Close()
	if _, err := read(t, l.Addr().String()); err == nil {
		t.Error("nobody listened, and that was no error")
	}
}

// FuzzText: whoever holds the port may say anything.
func FuzzText(f *testing.F) {
	for _, name := range []string{"status.txt", "status.json"} {
		text, err := os.ReadFile("testdata/" + name)
		must.NoError(f, err)
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func(string) (*recording.RAS, error){
			fromText,
			func(s string) (*recording.RAS, error) { return fromJSON([]byte(s)) },
		} {
			r, err := parse(text)
			if err != nil {
				continue
			}
			ranks := 0
			for _, c := range r.Communicators {
				ranks += len(c.Ranks) + len(c.Missing)
			}
			if len(r.Communicators) > maxCommunicators || ranks > maxRanks {
				t.Errorf("%d communicators with %d ranks", len(r.Communicators), ranks)
			}
		}
	})
}
