package push

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// Endpoint is where spans and metrics go.
type Endpoint struct {
	url     *url.URL // of the receiver: paths of the signals come behind its own
	headers http.Header
}

// ParseEndpoint reads an address, and headers as OTEL_EXPORTER_OTLP_HEADERS has them: key=value,key=value with values
// in percent encoding. Its errors say nothing of the values, which are secrets often.
func ParseEndpoint(address, headers string) (*Endpoint, error) {
	bad := func(why string) error {
		return clierror.New(clierror.Usage,
			"write it like http://127.0.0.1:4318; what identifies you goes into OTEL_EXPORTER_OTLP_HEADERS",
			fmt.Errorf("--otlp-endpoint or OTEL_EXPORTER_OTLP_ENDPOINT: %s", why))
	}
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, bad("this is not an address")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, bad("the address begins with neither http:// nor https://")
	case u.Hostname() == "":
		return nil, bad("the address names no host")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, bad("the address has a user, a query or a fragment")
	}
	e := &Endpoint{url: u, headers: http.Header{}}
	for pair := range strings.SplitSeq(headers, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		text, err := url.PathUnescape(strings.TrimSpace(value))
		key = strings.TrimSpace(key)
		if !ok || err != nil || !httpguts.ValidHeaderFieldName(key) || !httpguts.ValidHeaderFieldValue(text) {
			return nil, clierror.New(clierror.Usage,
				"write them as key=value,key=value with values in percent encoding",
				errors.New("OTEL_EXPORTER_OTLP_HEADERS cannot be read"))
		}
		e.headers.Set(key, text)
	}
	return e, nil
}

// at returns the address of a signal: traces or metrics.
func (e *Endpoint) at(signal string) string { return e.url.JoinPath("v1", signal).String() }

// String returns where it goes, without what may be secret.
func (e *Endpoint) String() string { return e.url.Scheme + "://" + e.url.Host }
