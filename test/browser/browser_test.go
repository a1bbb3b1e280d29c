// Package browser_test opens reports in a real Chromium, and does with them what a person does.
package browser_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// hang is how long the browser may take for everything before it is taken for hanging.
const hang = 8 * time.Minute

// TestPages makes pages of recordings of 1 thousand and of 1 million events and of a minute, and lets drive.mjs check
// them; the large ones, which take a minute, only where INFERSCOPE_BROWSER is all, as make test-browser sets it: the
// others do with a tenth. It needs node, Chromium and playwright-core (npm ci in this folder), and is skipped where one
// is missing. INFERSCOPE_PAGES keeps the pages and the screenshots in a folder.
func TestPages(t *testing.T) {
	node, chromium := browser(t)
	dir := os.Getenv("INFERSCOPE_PAGES")
	if dir == "" {
		dir = t.TempDir()
	}
	pages := map[string]*recording.Recording{
		"pipeline": pipeline(500*ms, nil),
		"small":    timelinetest.Eager.Make(1000),
		"served":   served(),
	}
	if os.Getenv("INFERSCOPE_BROWSER") == "all" {
		pages["million"],
			pages["crowd"],
			pages["minute"] = timelinetest.Eager.Make(1_000_000),
			timelinetest.Crowd.Make(60_000),
			minute()
	} else {
		pages["million"] = timelinetest.Eager.Make(100_000)
	}
	for name, rec := range pages {
		write(t, filepath.Join(dir, name+".html"), rec)
	}
	ctx, stop := context.WithTimeout(t.Context(), hang)
	defer stop()
	cmd := exec.CommandContext(ctx, node, "drive.mjs", dir, chromium)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	t.Logf("\n%s", out.Bytes())
	if err != nil {
		t.Fatalf("the browser test: %v", err)
	}
}

func write(t *testing.T, path string, rec *recording.Recording) {
	t.Helper()
	var out bytes.Buffer
	began := time.Now()
	must.NoError(t, report.HTML(&out, report.New(rec)))
	t.Logf("%-14s %8d events, %7d bytes, made in %v",
		filepath.Base(path), len(rec.Events), out.Len(), time.Since(began).Round(time.Millisecond))
	must.NoError(t, os.WriteFile(path, out.Bytes(), 0o600))
}

// browser finds node and Chromium, and skips the test where something is missing.
func browser(t *testing.T) (node, chromium string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node here: apt-get install nodejs npm")
	}
	if _, err := os.Stat("node_modules/playwright-core"); err != nil {
		t.Skip("no playwright-core here: npm ci in test/browser")
	}
	if chromium = os.Getenv("INFERSCOPE_CHROMIUM"); chromium != "" {
		return node, chromium
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return node, path
		}
	}
	t.Skip("no Chromium here: apt-get install chromium, or INFERSCOPE_CHROMIUM=/path/to/it")
	return "", ""
}
