package push

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/inferscope/inferscope/internal/format/version"
)

const (
	sendTimeout = 10 * time.Second
	maxRest     = 5 * time.Minute // a receiver may ask for so long a pause
	maxAnswer   = 64 << 10        // bytes of an answer that are read, so that the connection can be used again
)

// sender posts messages.
type sender struct {
	endpoint *Endpoint
	client   *http.Client
	rest     time.Time       // the receiver wants to hear nothing before
	failing  map[string]bool // by signal
}

func newSender(e *Endpoint) *sender {
	return &sender{endpoint: e, failing: map[string]bool{}, client: &http.Client{
		Timeout: sendTimeout,
		// What is sent goes where it was told to, with its headers.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

var errResting = errors.New("the receiver has asked for a pause")

// encode makes a body of a message.
func encode(m proto.Message) ([]byte, error) {
	raw, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("OTLP: %w", err)
	}
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	if _, err = z.Write(raw); err == nil {
		err = z.Close()
	}
	return body.Bytes(), err
}

// send posts a body of a signal; again: it may work later.
func (s *sender) send(ctx context.Context, signal string, body []byte) (again bool, err error) {
	if time.Now().Before(s.rest) {
		return true, errResting
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint.at(signal), bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("OTLP: %w", err)
	}
	req.Header = s.endpoint.headers.Clone()
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("Content-Encoding", "gzip")
	req.Header.Set("User-Agent", "inferscoped/"+version.Get().Version)
	resp, err := s.client.Do(req)
	if err != nil {
		return true, fmt.Errorf("OTLP: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		s.pause(resp.Header.Get("Retry-After"))
		return true, fmt.Errorf("OTLP: the receiver of %s answers %s", signal, resp.Status)
	}
	if resp.StatusCode/100 != 2 {
		return false, fmt.Errorf("OTLP: the receiver of %s answers %s", signal, resp.Status)
	}
	return false, nil
}

// pause heeds Retry-After: seconds or a date.
func (s *sender) pause(text string) {
	rest := time.Duration(0)
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		rest = time.Duration(n) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		rest = time.Until(at)
	}
	s.rest = time.Now().Add(min(rest, maxRest))
}

// changed reports whether sending a signal has begun to fail, or works again.
func (s *sender) changed(signal string, err error) bool {
	if errors.Is(err, errResting) || (err != nil) == s.failing[signal] {
		return false
	}
	s.failing[signal] = err != nil
	return true
}
