package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestRecordingArrivesWhole(t *testing.T) {
	b := newFake()
	client := dial(t, serve(t, b, patient()))
	rec, err := client.Recording(context.Background(), alicePID, Window{Last: 30 * time.Second})
	must.NoError(t, err)
	if len(rec.Events) != 2 || rec.Events[1] != b.events[1] || rec.Meta.Target != alicePID ||
		len(rec.Meta.Functions) != 1 {
		t.Errorf("recording = %+v", rec)
	}
	if b.lastLast != 30*time.Second || b.lastFrom != 0 {
		t.Errorf("asked for last %v from %d", b.lastLast, b.lastFrom)
	}
	if b.released.Load() != 1 {
		t.Errorf("released %d times, want once", b.released.Load())
	}
}

func TestRecordingForATimeToComeBeginsNow(t *testing.T) {
	b := newFake()
	b.clock.Store(500)
	client := dial(t, serve(t, b, patient()))
	if _, err := client.Recording(context.Background(), alicePID, Window{For: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if b.lastFrom != 501 || b.lastLast != 0 {
		t.Errorf("from %d last %v, want the time of the request", b.lastFrom, b.lastLast)
	}
}

func TestWaitingEndsWithTheTarget(t *testing.T) {
	b := newFake()
	client := dial(t, serve(t, b, patient()))
	done := make(chan error)
	go func() {
		_, err := client.Recording(context.Background(), alicePID, Window{For: time.Minute})
		done <- err
	}()
	for b.clock.Load() == 0 { // until the request waits
		time.Sleep(time.Millisecond)
	}
	b.exited.Store(true)
	if err := <-done; err != nil {
		t.Errorf("what was recorded until the target exited is not served: %v", err)
	}
	_, err := client.Recording(context.Background(), alicePID, Window{For: time.Second})
	wantFault(t, err, clierror.NoProcess)
	if _, err := client.Recording(context.Background(), alicePID, Window{Last: time.Second}); err != nil {
		t.Errorf("a target that exited is not served any more: %v", err)
	}
}

func TestWaitingEndsWithTheDaemon(t *testing.T) {
	b := newFake()
	path := publicDir(t) + "/s.sock"
	l, err := Listen(path)
	must.NoError(t, err)
	defer l.Close()
	s := NewServer(b, patient(), nil)
	go s.Serve(l) //nolint:errcheck // its end is the test's
	client := dial(t, path)
	done := make(chan error)
	go func() {
		_, err := client.Recording(context.Background(), alicePID, Window{For: time.Minute})
		done <- err
	}()
	for b.clock.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown = %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("what was recorded until the daemon stopped is not served: %v", err)
	}
}

func TestDisconnectEndsTheWait(t *testing.T) {
	b := newFake()
	limits := patient()
	limits.Connections, limits.Recordings = 4, 1
	socket := serve(t, b, limits)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := dial(t, socket).Recording(ctx, alicePID, Window{For: time.Minute})
		done <- err
	}()
	for b.clock.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want canceled", err)
	}
	if len(b.recorded) != 0 {
		t.Error("a recording was made for somebody who left")
	}
}

func TestTooManyRecordings(t *testing.T) {
	b := newFake()
	b.gate = make(chan struct{})
	limits := patient()
	limits.Recordings, limits.Queue = 2, time.Millisecond
	socket := serve(t, b, limits)
	done := make(chan error)
	for range 2 {
		go func() {
			_, err := dial(t, socket).Recording(context.Background(), alicePID, Window{})
			done <- err
		}()
	}
	<-b.recorded
	<-b.recorded
	_, err := dial(t, socket).Recording(context.Background(), alicePID, Window{})
	wantFault(t, err, clierror.General)
	if !strings.Contains(err.Error(), "already sends 2 recordings") {
		t.Errorf("error = %v", err)
	}
	close(b.gate)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if _, err := dial(t, socket).Recording(context.Background(), alicePID, Window{}); err != nil {
		t.Errorf("the places did not become free: %v", err)
	}
}

func TestOneUserCannotTakeAllRecordings(t *testing.T) {
	b := newFake()
	b.gate = make(chan struct{})
	limits := patient()
	limits.Recordings, limits.RecordingsPerUser = 2, 1
	socket := serve(t, b, limits)
	first, second := dialAs(t, socket, alice), dialAs(t, socket, alice)
	done := make(chan error)
	go func() {
		_, err := first.Recording(context.Background(), alicePID, Window{})
		done <- err
	}()
	<-b.recorded
	_, err := second.Recording(context.Background(), alicePID, Window{})
	wantFault(t, err, clierror.General)
	if !strings.Contains(err.Error(), "user 40001 already receives 1 recordings") {
		t.Errorf("error = %v", err)
	}
	close(b.gate)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := second.Recording(context.Background(), alicePID, Window{}); err != nil {
		t.Errorf("the place did not become free: %v", err)
	}
}

func TestReaderThatDoesNotReadIsCutOff(t *testing.T) {
	b := newFake()
	b.events = make([]event.Event, 4096)
	b.repeat = 400 // 100 MB, which no socket buffer holds
	limits := patient()
	limits.Send = 50 * time.Millisecond
	socket := serve(t, b, limits)
	conn, err := net.Dial("unix", socket)
	must.NoError(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s?pid=%d HTTP/1.1\r\nHost: x\r\n\r\n", PathRecording, alicePID)
	for b.released.Load() == 0 { // a hang here is the failure
		time.Sleep(time.Millisecond)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must.NoError(t, err)
	defer resp.Body.Close()
	if _, err := recording.ReadStream(resp.Body, recording.DefaultLimits()); err == nil {
		t.Error("a recording that was cut off reads as a whole one")
	}
}

func TestDaemonThatDiesMidStreamIsAnErrorWithAHint(t *testing.T) {
	path := publicDir(t) + "/s.sock"
	l, err := net.Listen("unix", path)
	must.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
					return
				}
				fmt.Fprintf(
					conn,
					"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nISCOPE\r\n\r\n",
					RecordingType,
				)
			}()
		}
	}()
	_, err = dial(t, path).Recording(context.Background(), 1, Window{})
	wantFault(t, err, clierror.General)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error = %v, want an unexpected EOF", err)
	}
}

func TestBadRecordingQueries(t *testing.T) {
	b := newFake()
	socket := serve(t, b, patient())
	client := dial(t, socket)
	for query, says := range map[string]string{
		"":                         `pid="" is not a process id`,
		"pid=0":                    "not a process id",
		"pid=-1":                   "not a process id",
		"pid=4294967396":           "not a process id",
		"pid=100x":                 "not a process id",
		"pid=100&last=1s&for=1s":   "cannot be asked together",
		"pid=100&last=0s":          "not a duration above 0",
		"pid=100&last=-5s":         "not a duration above 0",
		"pid=100&last=30":          "not a duration",
		"pid=100&for=1h":           "longer than the 1m0s",
		"pid=100&for=99999999999h": "not a duration",
	} {
		t.Run(query, func(t *testing.T) {
			_, err := client.get(context.Background(), PathRecording+"?"+query) //nolint:bodyclose // there is none
			wantFault(t, err, clierror.Usage)
			if !strings.Contains(err.Error(), says) {
				t.Errorf("error %q does not say %q", err, says)
			}
		})
	}
	if len(b.recorded) != 0 {
		t.Error("a recording was made")
	}
}

func FuzzParseRecording(f *testing.F) {
	f.Add("pid=1&last=1s")
	f.Add("pid=1&for=1h")
	f.Add("pid=%00&pid=2&last=" + strings.Repeat("1", 100))
	fuzzing.Run(f, func(t *testing.T, raw string) {
		q, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		pid, win, err := parseRecording(q, time.Minute)
		if err != nil {
			if clierror.CodeOf(err) != clierror.Usage || len(err.Error()) > 1024 {
				t.Errorf("error %q is no usage fault, or repeats too much", err)
			}
			return
		}
		if pid == 0 || pid > 1<<31 || win.Last < 0 || win.For < 0 || win.For > time.Minute ||
			(win.Last > 0 && win.For > 0) {
			t.Errorf("accepted pid %d, window %+v", pid, win)
		}
	})
}
