package diagnosis

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// answers starts a server that answers "N\n" after N µs, and returns its port.
func answers(tb testing.TB) string {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	must.NoError(tb, err)
	tb.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answer(c)
		}
	}()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

func answer(c net.Conn) {
	defer c.Close()
	for lines := bufio.NewScanner(c); lines.Scan(); {
		us, err := strconv.Atoi(lines.Text())
		if err != nil {
			return
		}
		time.Sleep(time.Duration(us) * time.Microsecond)
		if _, err := fmt.Fprintln(c, "done"); err != nil {
			return
		}
	}
}

// pages starts an HTTP server that answers a request of /N after N µs, and returns its port.
func pages(tb testing.TB) string {
	tb.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		us, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		time.Sleep(time.Duration(us) * time.Microsecond)
		fmt.Fprintln(w, "done")
	}))
	tb.Cleanup(s.CloseClientConnections)
	return strconv.Itoa(s.Listener.Addr().(*net.TCPAddr).Port)
}

// ask sends requests until the program or the test ends.
func (s *scenario) ask(ctx context.Context, port string) {
	if s.http {
		askPages(ctx, "http://127.0.0.1:"+port+"/", s.request)
		return
	}
	for ctx.Err() == nil && askOn(ctx, "127.0.0.1:"+port, s.request) {
	}
}

func askPages(ctx context.Context, url string, rest time.Duration) {
	for ctx.Err() == nil {
		time.Sleep(rest)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return
		}
		if answer, err := http.DefaultClient.Do(r); err == nil {
			answer.Body.Close()
		}
	}
}

// askOn sends a byte so long after each that comes back, on one connection, and reports whether it was answered at all.
func askOn(ctx context.Context, address string, rest time.Duration) bool {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	b := []byte{0}
	for {
		time.Sleep(rest)
		if _, err := c.Write(b); err != nil {
			return true
		}
		if _, err := c.Read(b); err != nil {
			return true
		}
	}
}
