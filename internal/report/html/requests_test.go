package html_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// served returns a recording with n requests that began 10 ms after each other; each takes length.
func served(n int, length uint64) *recording.Recording {
	rec := timelinetest.Eager.Make(2000)
	m := &rec.Meta
	for i := range uint64(n) {
		at := m.From + i*1e7
		m.Requests = append(m.Requests, recording.Request{
			Number: i + 1, PID: m.Target, Received: at, Asked: at + 1000, FirstToken: at + length/2,
			LastToken: at + length - 2000,
			End:       at + length, Method: "POST", Route: "/v1/completions", Model: nasty, ID: fmt.Sprint("cmpl-", i),
			Status: 200, Outcome: "complete", Streamed: true, OutputTokens: 9, TokenSource: "chunks",
		})
	}
	m.To = max(m.To, m.From+uint64(n)*1e7+length)
	return rec
}

// requestTracks returns the items of each track of requests, and the tracks' group.
func requestTracks(t *testing.T, rec *recording.Recording) (items []int, group string, doc shown) {
	t.Helper()
	doc, _ = data(t, pageOf(t, rec))
	for _, tr := range doc.Tracks {
		if tr.Kind == "request" {
			items, group = append(items, tr.All), tr.Group
		}
	}
	return items, group, doc
}

// TestRequestTracks: requests that do not overlap share a track; each has its stages; the slowest are drawn where there
// are too many.
func TestRequestTracks(t *testing.T) {
	items, group, doc := requestTracks(t, served(5, 8e6))
	if len(items) != 1 || items[0] != 5*(1+4) || group != "Requests" {
		t.Errorf("tracks of %v items in %q, want one with 5 requests of 4 stages", items, group)
	}
	stages := map[string]string{}
	named := false
	for _, l := range doc.Labels {
		stages[l[0]] = l[1]
		named = named || strings.HasPrefix(l[0], "POST /v1/completions, cmpl-3, ") &&
			strings.HasSuffix(l[0], ", first token after 4.00 ms, at least 9 output tokens") && l[1] == "request"
	}
	for name, class := range map[string]string{
		"read": "stage server", "queue and prefill": "stage prefill", "decode": "stage decode",
		"finish": "stage server",
	} {
		if stages[name] != class {
			t.Errorf("stage %s is of class %q, want %q", name, stages[name], class)
		}
	}
	if !named {
		t.Errorf("no label has a request's tokens and id: %v", doc.Labels)
	}
	if items, group, _ = requestTracks(t, served(3, 25e6)); len(items) != 3 {
		t.Errorf("tracks of %v items in %q, want 3", items, group)
	}
	items, group, _ = requestTracks(t, served(40, 1e9))
	if len(items) != 24 || group != "Requests: 24 of 40, the slowest" {
		t.Errorf("%d tracks in %q", len(items), group)
	}
}

// TestRequestTables: the page has what the report says of requests.
func TestRequestTables(t *testing.T) {
	rec := served(30, 8e6)
	rec.Meta.Requests[7].End += 1e6 // the slowest
	doc, _ := data(t, pageOf(t, rec))
	tables := map[string]int{}
	for _, tb := range doc.Tables {
		tables[tb.Key] = len(tb.Rows)
		if tb.Key == "requests" {
			if row := tb.Rows[0]; row[0] != 9e6 || row[1] != 4e6 || row[len(row)-1] != "cmpl-7" || row[10] != 7e7 {
				t.Errorf("the slowest is %v", row)
			}
		}
	}
	rec.Meta.Requests[7].Prompt, rec.Meta.Requests[7].Answer = "asked", "answered"
	doc, _ = data(t, pageOf(t, rec))
	for _, tb := range doc.Tables {
		if row := tb.Rows[0]; tb.Key == "requests" &&
			(row[len(row)-2] != "asked" || row[len(row)-1] != "answered") {
			t.Errorf("with content, the slowest is %v", row)
		}
	}
	if tables["requests"] != 30 || tables["routes"] != 1 {
		t.Errorf("rows of tables: %v", tables)
	}
	if doc, _ := data(t, pageOf(t, timelinetest.Eager.Make(2000))); len(doc.Tables) == 0 ||
		doc.Tables[0].Key == "requests" {
		t.Error("there is a table of requests without any")
	}
}
