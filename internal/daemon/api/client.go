package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
)

// maxAnswer bounds what a client takes of an answer that is JSON, in bytes.
const maxAnswer = 64 << 20

// dialTimeout is long for a unix socket: only a daemon that hangs does not accept.
const dialTimeout = 3 * time.Second

// answerTimeout bounds every answer but a recording's.
const answerTimeout = 15 * time.Second

// Client asks a daemon. Its errors are faults: NoDaemon where none answers,
// Permission, NoProcess and Usage as the daemon says.
type Client struct {
	socket string
	http   *http.Client
}

// Dial connects to the daemon at socket, so that a missing daemon is known at once.
func Dial(socket string) (*Client, error) {
	c := &Client{socket: socket}
	transport := &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		DisableCompression:     true,
		MaxResponseHeaderBytes: 16 << 10,
		MaxIdleConns:           2,
		IdleConnTimeout:        10 * time.Second,
	}
	c.http = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	conn, err := c.dial(context.Background())
	if err != nil {
		return nil, err
	}
	_ = conn.Close()
	return c, nil
}

// Close lets idle connections go.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "unix", c.socket)
	if err != nil {
		return nil, c.refused(err)
	}
	return conn, nil
}

// refused reports why connecting failed.
func (c *Client) refused(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return clierror.New(clierror.Permission,
			"ask as root (sudo), or have the directories above the socket opened to you",
			fmt.Errorf("this user may not connect to %s: %w", c.socket, os.ErrPermission))
	}
	return c.noDaemon(err)
}

func (c *Client) noDaemon(err error) error {
	why := err
	var sys syscall.Errno
	if errors.As(err, &sys) {
		why = sys // the wrapping repeats the socket's name
	}
	return clierror.New(clierror.NoDaemon, "start it with: sudo inferscoped",
		fmt.Errorf("no daemon answers on %s: %w", c.socket, why))
}

// Version returns which daemon answers.
func (c *Client) Version(ctx context.Context) (Version, error) {
	var v Version
	err := c.getJSON(ctx, pathVersion, &v)
	return v, err
}

// Status returns how the daemon is, as far as this user may see it.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	err := c.getJSON(ctx, pathStatus, &s)
	return s, err
}

// Targets returns the targets that this user may see.
func (c *Client) Targets(ctx context.Context) ([]Target, error) {
	var t []Target
	err := c.getJSON(ctx, pathTargets, &t)
	return t, err
}

// Recording fetches the recording of target pid. With win.For it takes that long.
func (c *Client) Recording(ctx context.Context, pid uint32, win Window) (*recording.Recording, error) {
	q := url.Values{"pid": {strconv.FormatUint(uint64(pid), 10)}}
	switch {
	case win.For > 0:
		q.Set("for", win.For.String())
		if win.GPU != "" {
			q.Set("gpu", win.GPU)
		}
	case win.Last > 0:
		q.Set("last", win.Last.String())
	}
	resp, err := c.get(ctx, PathRecording+"?"+q.Encode())
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); got != RecordingType {
		return nil, clierror.New(clierror.General, "use a client of the daemon's version",
			fmt.Errorf("the daemon sent %q instead of a recording", clip(got)))
	}
	rec, err := recording.ReadStream(resp.Body, recording.DefaultLimits())
	if err != nil {
		return nil, fmt.Errorf("receiving the recording of pid %d: %w", pid, c.cutOff(ctx, err))
	}
	return rec, nil
}

// cutOff says of a stream that ended too early what to do about it.
func (c *Client) cutOff(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return clierror.New(clierror.General,
			"ask again, or look into the daemon's log: it stopped, or found this reader too slow", err)
	}
	return err
}

func (c *Client) getJSON(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	resp, err := c.get(ctx, path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(into); err != nil {
		return fmt.Errorf("reading the daemon's answer to %s: %w", path, err)
	}
	return nil
}

// get returns an answer that is no error; its body must be closed.
func (c *Client) get(ctx context.Context, path string) (*http.Response, error) {
	return c.ask(ctx, http.MethodGet, path)
}

// ask is get for any method.
func (c *Client) ask(ctx context.Context, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://inferscoped"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", path, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreached(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, readError(resp)
	}
	return resp, nil
}

// unreached takes net/http's wrapping, which names a URL that nobody typed, off an error.
func (c *Client) unreached(ctx context.Context, err error) error {
	var f *clierror.Fault
	switch {
	case errors.As(err, &f):
		return f
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded):
		return clierror.New(clierror.NoDaemon, "look into the daemon's log",
			fmt.Errorf("the daemon on %s does not answer", c.socket))
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return c.noDaemon(err)
}
