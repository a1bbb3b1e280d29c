package html_test

import (
	"bytes"
	"cmp"
	"compress/flate"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

const nasty = `</title></script><script>window.owned=1</script><!--`

// pageOf returns the page of a recording.
func pageOf(t *testing.T, rec *recording.Recording) string {
	t.Helper()
	var out bytes.Buffer
	must.NoError(t, report.HTML(&out, report.New(rec)))
	return out.String()
}

// shown is what the tests look at of the data of a page.
type shown struct {
	Title   string      `json:"title"`
	Notes   []string    `json:"notes"`
	Hidden  int         `json:"hidden"` // threads
	Labels  [][2]string `json:"labels"`
	Quantum uint64      `json:"quantum"`
	Merged  uint64      `json:"merged"`
	Time    uint64      `json:"time"`
	Parts   []struct {
		Time uint64 `json:"ns"`
	} `json:"parts"`
	Tracks []struct {
		Kind  string `json:"kind"`
		Group string `json:"group"`
		Name  string `json:"name"`
		N     int    `json:"n"`
		All   int    `json:"all"`
	} `json:"tracks"`
	Tables []struct {
		Key  string  `json:"key"`
		Rows [][]any `json:"rows"`
	} `json:"tables"`
	Flames []struct {
		N int `json:"n"`
	} `json:"flames"`
}

// data unpacks the block of a page, as web/src/data.js does.
func data(t *testing.T, page string) (doc shown, columns []byte) {
	t.Helper()
	_, rest, _ := strings.Cut(page, `id="data">`)
	block, _, _ := strings.Cut(rest, "</script>")
	packed, err := base64.StdEncoding.DecodeString(block)
	must.NoError(t, err)
	whole, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed)))
	must.NoError(t, err)
	n := binary.LittleEndian.Uint32(whole)
	must.NoError(t, json.Unmarshal(whole[4:4+n], &doc))
	return doc, whole[4+n:]
}

// TestNamesAreNoMarkup: whatever a target is called, the page has its own two scripts and the block of data.
func TestNamesAreNoMarkup(t *testing.T) {
	rec := timelinetest.Eager.Make(2000)
	rec.Meta.Processes[0].Comm, rec.Meta.Processes[0].Cmdline = nasty, nasty
	rec.Meta.Threads[0].Name = nasty
	for i := range rec.Meta.GPU.Kernels {
		rec.Meta.GPU.Kernels[i].Name = nasty
	}
	for i := range rec.Meta.Frames {
		rec.Meta.Frames[i].Name, rec.Meta.Frames[i].File = nasty, nasty
	}
	page := pageOf(t, rec)
	for _, tag := range []string{"<script", "</script>"} {
		if n := strings.Count(page, tag); n != 2 {
			t.Errorf("%d times %s, want 2", n, tag)
		}
	}
	if strings.Contains(page, "window.owned") && !strings.Contains(page, "&lt;script&gt;window.owned") {
		t.Error("a name stands in the page as it is")
	}
	if n := strings.Count(page, "</title>"); n != 1 {
		t.Errorf("the title ends %d times", n)
	}
	if doc, _ := data(t, page); !strings.Contains(doc.Title, "<script>") {
		t.Errorf("the title is %q: the test tests nothing", doc.Title)
	}
}

// TestPolicy: the page's own script and style may run, and nothing may be fetched.
func TestPolicy(t *testing.T) {
	page := pageOf(t, timelinetest.Eager.Make(500))
	policy := regexp.MustCompile(`Content-Security-Policy" content="([^"]*)"`).FindStringSubmatch(page)[1]
	if !strings.HasPrefix(policy, "default-src 'none';") {
		t.Errorf("the policy is %s", policy)
	}
	_, rest, _ := strings.Cut(page, "</script>\n<script>")
	script, _, _ := strings.Cut(rest, "</script>")
	_, rest, _ = strings.Cut(page, "<style>")
	style, _, _ := strings.Cut(rest, "</style>")
	for what, text := range map[string]string{"script-src": script, "style-src": style} {
		sum := sha256.Sum256([]byte(text))
		if want := what + " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(
			policy,
			want,
		) {
			t.Errorf("%s is not allowed by %s", want, policy)
		}
	}
	if m := regexp.MustCompile(`(?i)(src|href)="(https?:)?//`).FindString(page); m != "" {
		t.Errorf("the page refers to %s", m)
	}
}

// TestNumbers: the parts add up, a small recording is shown as it was recorded, and the columns are used up exactly.
func TestNumbers(t *testing.T) {
	doc, columns := data(t, pageOf(t, timelinetest.Eager.Make(4000)))
	sum := uint64(0)
	for _, p := range doc.Parts {
		sum += p.Time
	}
	if sum != doc.Time || sum == 0 {
		t.Errorf("the parts sum to %d ns of %d", sum, doc.Time)
	}
	want, kinds := 0, map[string]int{}
	for _, tr := range doc.Tracks {
		kinds[tr.Kind] += tr.N
		want += 5 * tr.N
		if tr.N != tr.All {
			t.Errorf("a track of %d items shows %d", tr.All, tr.N)
		}
	}
	for _, f := range doc.Flames {
		want += 3 * f.N
	}
	if doc.Merged != 0 || kinds["gpu"] < 1000 || kinds["call"] < 1000 || kinds["idle"] == 0 || kinds["state"] == 0 {
		t.Errorf("merged below %d ns, items %v", doc.Merged, kinds)
	}
	n := 0
	for len(columns) > 0 {
		_, size := binary.Uvarint(columns)
		if size <= 0 {
			t.Fatalf("after %d numbers comes none", n)
		}
		columns, n = columns[size:], n+1
	}
	if n != want {
		t.Errorf("%d numbers, want %d", n, want)
	}
}

// TestPure: the same recording gives the same page, byte for byte.
func TestPure(t *testing.T) {
	rec := timelinetest.Crowd.Make(20_000)
	if pageOf(t, rec) != pageOf(t, rec) {
		t.Error("two pages of one recording differ")
	}
}

// TestEmpty: there is a page of a recording of nothing, and none of a model that lost its timeline.
func TestEmpty(t *testing.T) {
	for name, rec := range map[string]*recording.Recording{"nothing": recordtest.New().Recording(), "calls": calltest.New().Do("cuCtxSynchronize", 5000, 1_000_000).Recording()} {
		if page := pageOf(t, rec); !strings.HasSuffix(page, "</html>\n") {
			t.Errorf("%s: the page ends with %q", name, page[max(0, len(page)-20):])
		}
	}
	if err := report.HTML(io.Discard, &report.Model{}); err == nil {
		t.Error("a page of a model without a timeline")
	}
}

func BenchmarkPage(b *testing.B) {
	m := report.New(timelinetest.Eager.Make(1_000_000))
	for b.Loop() {
		var out bytes.Buffer
		must.NoError(b, report.HTML(&out, m))
		b.ReportMetric(float64(out.Len()), "bytes")
	}
}

// TestThreadsThatHardlyRan: the many threads of a server that serve one request each get no tracks.
func TestThreadsThatHardlyRan(t *testing.T) {
	rec := timelinetest.Eager.Make(2000)
	from, to := rec.Meta.From, rec.Meta.To
	pid := rec.Meta.Target
	before, _ := data(t, pageOf(t, rec))
	const brief, few = 40, 16 // and so many are shown whatever they do
	for i := range uint64(brief) {
		at, tid := from+i*(to-from)/100, uint32(9000+i)
		rec.Events = append(
			rec.Events,
			event.Event{
				TS: at, Dur: 100, PID: pid, TID: tid, Kind: event.OffCPU, Flags: event.Mark | event.Timed,
				Func: uint16(event.Born),
			},
			event.Event{TS: at + 200, Dur: to - at, PID: pid, TID: tid, Kind: event.OffCPU, Flags: event.Timed},
		)
	}
	slices.SortStableFunc(rec.Events, func(a, b event.Event) int { return cmp.Compare(a.TS, b.TS) })
	after, _ := data(t, pageOf(t, rec))
	if hidden := after.Hidden - before.Hidden; hidden < brief-few || hidden > brief {
		t.Errorf("%d of %d threads that ran for 100 ns are hidden", hidden, brief)
	}
}
