package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/report"
)

const serveHelp = `serve shows reports of what the daemon of this host watches in a browser, each made on
request. It listens on this host alone; from another one:

    ssh -t -L 8345:localhost:8345 gpu-host sudo inferscope serve

Then open the address that it prints: it contains a secret, so other users of either host
cannot read reports. Append a pid or a name for that process, ?last=30s for the last 30 s.
Ctrl-C ends it; with ssh -t, the end of the connection does, too.`

// defaultServe is the default address of serve. The port has no known use.
const defaultServe = "127.0.0.1:8345"

func serveCommand(g *global) *cobra.Command {
	listen := defaultServe
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Show HTML reports of this host in a browser",
		Long:  serveHelp,
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return g.serve(cmd.Context(), listen) },
	}
	cmd.Flags().StringVar(&listen, "listen", listen, "address of this host to listen on")
	return cmd
}

// pages serves the HTTP requests of a browser.
type pages struct {
	g      *global
	secret string
	mu     sync.Mutex // one report at a time: each takes memory and a CPU
}

func (g *global) serve(ctx context.Context, listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if err == nil && host != "localhost" {
		var ip netip.Addr
		if ip, err = netip.ParseAddr(host); err == nil && !ip.IsLoopback() {
			err = errors.New("it is not an address of this host alone")
		}
	}
	if err != nil {
		return clierror.New(clierror.Usage, "listen on localhost:PORT and reach it through ssh -L",
			fmt.Errorf("--listen %q: %w", listen, err))
	}
	client, err := g.dial() // so that a daemon that is missing is said here
	if err != nil {
		return err
	}
	client.Close()
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", listen)
	if err != nil {
		return clierror.New(clierror.General, "choose another port with --listen",
			fmt.Errorf("serving reports: %w", err))
	}
	p := &pages{g: g, secret: rand.Text()}
	server := &http.Server{
		Handler:        p.handler(),
		ReadTimeout:    5 * time.Second,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 8 << 10,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	fmt.Fprintf(g.stdout, "http://%s/%s/\n", l.Addr(), p.secret)
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving reports: %w", err)
	}
	return nil
}

// handler refuses requests without the secret in the path, and requests for other host names: a foreign page that
// resolves its own name to this host (DNS rebinding) uses that name.
func (p *pages) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /"+p.secret+"/{$}", p.list)
	mux.HandleFunc("GET /"+p.secret+"/{target}", p.report)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "open the address that inferscope serve printed: it is another one after each start",
			http.StatusNotFound)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.Host
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
		ip, err := netip.ParseAddr(strings.Trim(name, "[]"))
		if name != "localhost" && (err != nil || !ip.IsLoopback()) {
			http.Error(w, "open this page as localhost", http.StatusMisdirectedRequest)
			return
		}
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Header().Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}

var listPage = template.Must(template.New("targets").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>InferScope</title>
<style>body{font:16px sans-serif;margin:2em}td,th{padding:.2em 1em .2em 0;text-align:left}</style>
<h1>Watched processes</h1>
{{if .}}<table><tr><th>pid<th>process<th>state<th>pod<th>command</tr>
{{range .}}<tr><td><a href="{{.PID}}">{{.PID}}</a><td>{{.Comm}}<td>{{.State}}{{with .Detail}}: {{.}}{{end}}
<td>{{.Pod}}<td>{{.Cmdline}}</tr>
{{end}}</table>
<p>A report is about all that the daemon keeps; <code>?last=30s</code> behind its address is about the last 30 s.
{{else}}<p>The daemon watches no process; <code>inferscope ps</code> lists those that use a GPU.{{end}}
`))

// list shows the targets, or the report if there is only one.
func (p *pages) list(w http.ResponseWriter, r *http.Request) {
	client, err := p.g.dial()
	if err != nil {
		fail(w, err)
		return
	}
	defer client.Close()
	targets, err := client.Targets(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	if len(targets) == 1 {
		only := url.URL{Path: strconv.Itoa(int(targets[0].PID)), RawQuery: r.URL.RawQuery}
		http.Redirect(w, r, only.String(), http.StatusFound)
		return
	}
	slices.SortStableFunc(targets, func(a, b api.Target) int { return endedLast(&a) - endedLast(&b) })
	for i := range targets {
		targets[i].Cmdline, targets[i].Detail = format.Clean(targets[i].Cmdline), format.Clean(targets[i].Detail)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = listPage.Execute(w, targets) // a browser that goes away needs nothing
}

// endedLast sorts targets that have ended last.
func endedLast(t *api.Target) int {
	if ended(t) {
		return 1
	}
	return 0
}

// report serves the report of one process.
func (p *pages) report(w http.ResponseWriter, r *http.Request) {
	var stretch api.Window
	if last := r.URL.Query().Get("last"); last != "" {
		var err error
		if stretch.Last, err = time.ParseDuration(last); err != nil || stretch.Last <= 0 {
			http.Error(w, "last is a time such as 30s or 1m30s", http.StatusBadRequest)
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	client, err := p.g.dial()
	if err != nil {
		fail(w, err)
		return
	}
	defer client.Close()
	pid, err := p.find(r.Context(), client, r.PathValue("target"))
	if err != nil {
		fail(w, err)
		return
	}
	rec, err := client.Recording(r.Context(), pid, stretch)
	if err != nil {
		fail(w, err)
		return
	}
	var page bytes.Buffer // whole, before a word of it is sent: what fails has a status of its own
	if err := report.HTML(&page, p.g.analyzed(r.Context(), rec)); err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = page.WriteTo(w)
}

// find resolves a pid, process name or pod name to a pid.
func (p *pages) find(ctx context.Context, client *api.Client, text string) (uint32, error) {
	if pid, err := strconv.ParseUint(text, 10, 32); err == nil {
		return uint32(pid), nil
	}
	targets, err := client.Targets(ctx)
	if err != nil {
		return 0, err
	}
	return byName(targets, text)
}

// fail serves an error and its hint.
func fail(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch clierror.CodeOf(err) {
	case clierror.NoProcess:
		status = http.StatusNotFound
	case clierror.Usage: // a name that several have
		status = http.StatusBadRequest
	case clierror.NoDaemon:
		status = http.StatusServiceUnavailable
	case clierror.Permission:
		status = http.StatusForbidden
	}
	text := format.CleanText(err.Error())
	if hint := clierror.HintOf(err); hint != "" {
		text += "\n" + format.CleanText(hint)
	}
	http.Error(w, text, status)
}
