package metrics

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// loopback is where metrics are served unless an address names a host: a daemon
// that runs as root opens no port to the network by default.
const loopback = "127.0.0.1"

// Address completes what a user typed: "9400" and ":9400" mean 127.0.0.1:9400.
// The error is a clierror.Usage.
func Address(typed string) (string, error) {
	addr := typed
	if !strings.Contains(addr, ":") {
		addr = ":" + addr
	}
	host, port, err := net.SplitHostPort(addr)
	if n, perr := strconv.ParseUint(port, 10, 16); err == nil && (perr != nil || (n == 0 && port != "0")) {
		err = fmt.Errorf("%q is not a port", port)
	}
	if err != nil {
		return "", clierror.New(clierror.Usage, "write it like :9400 (this machine only) or 0.0.0.0:9400 (the network)",
			fmt.Errorf("--metrics-addr %q: %w", typed, err))
	}
	if host == "" {
		host = loopback
	}
	return net.JoinHostPort(host, port), nil
}

// Server serves /metrics.
type Server struct {
	http     *http.Server
	listener net.Listener
}

// known answers only requests that name this server as one may: by an IP address, as localhost, by the host of addr, or
// by one of hosts ("*": by any name). A page in a browser whose name was made to point here (DNS rebinding) names its
// own.
func known(addr string, hosts []string, next http.Handler) http.Handler {
	own, _, _ := net.SplitHostPort(addr)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.Host
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
		name = strings.TrimSuffix(strings.ToLower(strings.Trim(name, "[]")), ".")
		_, err := netip.ParseAddr(name)
		if err == nil || name == "localhost" || strings.EqualFold(name, own) ||
			slices.ContainsFunc(hosts, func(h string) bool { return h == "*" || strings.EqualFold(h, name) }) {
			next.ServeHTTP(w, r)
			return
		}
		http.Error(w, "metrics are not served under this name: name it with --metrics-host",
			http.StatusMisdirectedRequest)
	})
}

// Listen opens the port and returns a server that Serve starts. addr is as Address returns it; hosts are names under
// which the server may be asked, beside localhost and addresses.
func Listen(
	ctx context.Context,
	addr string,
	hosts []string,
	registry *prometheus.Registry,
	complain *log.Logger,
) (*Server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, clierror.New(clierror.General, "choose another --metrics-addr",
			fmt.Errorf("serving metrics: %w", err))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", known(addr, hosts, promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: complain, MaxRequestsInFlight: 2, Timeout: 10 * time.Second,
	})))
	return &Server{listener: l, http: &http.Server{
		Handler: mux, ErrorLog: complain, MaxHeaderBytes: 8 << 10,
		ReadTimeout: 5 * time.Second, WriteTimeout: 15 * time.Second, IdleTimeout: 2 * time.Minute,
	}}, nil
}

// Addr returns where the server listens.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve answers until Close; then it returns nil.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving metrics on %s: %w", s.Addr(), err)
	}
	return nil
}

// Close stops at once. A Server that never served is closed by it too.
func (s *Server) Close() error {
	return errors.Join(s.http.Close(), ignoreClosed(s.listener.Close()))
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
