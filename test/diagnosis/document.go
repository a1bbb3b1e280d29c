package diagnosis

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The sections of docs/examples/simulator.md that a command writes. Each stands between two markers, and only what is between
// them is replaced.
const (
	diagnosisSection = "bench-diagnosis"
	whatIfSection    = "bench-whatif"
)

func beginMarker(section string) string { return "<!-- begin " + section + " -->" }
func endMarker(section string) string   { return "<!-- end " + section + " -->" }

// replaceSection returns text with what stands between the markers of a section replaced by body. It fails unless each
// marker occurs once and in order: text that a person wrote is not lost to a broken marker.
func replaceSection(text, section, body string) (string, error) {
	begin, end := beginMarker(section), endMarker(section)
	if strings.Count(text, begin) != 1 || strings.Count(text, end) != 1 {
		return "", fmt.Errorf("want one %q and one %q", begin, end)
	}
	before, rest, _ := strings.Cut(text, begin)
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		return "", fmt.Errorf("%q comes before %q", end, begin)
	}
	return before + begin + "\n\n" + strings.TrimSpace(body) + "\n\n" + end + after, nil
}

// writeSection replaces a section of a file. A file that does not exist is made of that section alone.
func writeSection(path, section, body string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = []byte(beginMarker(section)+endMarker(section)+"\n"), nil
	}
	if err != nil {
		return err
	}
	changed, err := replaceSection(string(text), section, body)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(changed), 0o644)
}

// machine describes where a table was made, and with which lanes; replayed: its recordings were kept from before.
func machine(replayed bool, lanes string) string {
	if replayed {
		return "Judged again from kept recordings (`-replay`)."
	}
	var name unix.Utsname
	release := "unknown"
	if unix.Uname(&name) == nil {
		release = unix.ByteSliceToString(name.Release[:])
	}
	release, _, _ = strings.Cut(release, "-") // what a distribution adds
	text := fmt.Sprintf("Machine: %d CPUs, %s, Linux %s", runtime.NumCPU(), runtime.GOARCH, release)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		const fixedPoint = 1 << 16 // SI_LOAD_SHIFT
		text += fmt.Sprintf(", load average %.0f", float64(info.Loads[2])/fixedPoint)
	}
	if lanes != "1" {
		text += ", `-lanes " + lanes + "`"
	}
	return text + "."
}

// diagnosisDocument is the generated section of `make bench-diagnosis`: a row for each planted cause, and a row for
// each program that was judged wrong. The command prints a row for each program.
func diagnosisDocument(all []*verdict, asked int) string {
	var b strings.Builder
	b.WriteString("| planted cause | named right | cost error, median (worst) |\n|---|--:|--:|\n")
	for _, g := range groupBy(all, func(v *verdict) string { return or(v.Planted, "none (healthy)") }) {
		right, off := 0, []float64{}
		for _, v := range g.rows {
			if !v.Right {
				continue
			}
			right++
			if v.Planted != "" {
				off = append(off, math.Abs(v.Cost/v.True-1))
			}
		}
		fmt.Fprintf(&b, "| %s | %d/%d | %s |\n", g.name, right, len(g.rows), errorText(off))
	}
	b.WriteString("\n" + strings.ReplaceAll(scoreOf(all).String(), "; ", ";\n") + "\n")
	if wrong := chosen(all, func(v *verdict) bool { return v.mark() != "" }); len(wrong) > 0 {
		b.WriteString("\nPrograms with a wrong cause, or a cost that is too far off:\n\n" + table(wrong))
	}
	return b.String() + missing(len(all), asked)
}

// whatIfDocument is the generated section of `make bench-whatif`, built like diagnosisDocument.
func whatIfDocument(all []*predicted, asked int) string {
	var b strings.Builder
	b.WriteString(
		"| planted cause | measured speed-up | within 10% | inside interval | error, median (worst) |\n" +
			"|---|--:|--:|--:|--:|\n",
	)
	for _, g := range groupBy(all, func(v *predicted) string { return v.scenario.want }) {
		near, inside, measured, off := 0, 0, []float64{}, []float64{}
		for _, v := range g.rows {
			measured, off = append(measured, v.Measured), append(off, math.Abs(v.off()))
			if v.near() {
				near++
			}
			if v.inside() {
				inside++
			}
		}
		n := len(g.rows)
		fmt.Fprintf(&b, "| %s | %s | %d/%d | %d/%d | %s |\n",
			g.name, span(measured), near, n, inside, n, errorText(off))
	}
	s := predictedScore(all)
	fmt.Fprintf(
		&b,
		"\n%d programs and their fixed twins: %.1f%% of the predictions are within %.0f%% of the measured speed-up,\n"+
			"%.1f%% of the measured speed-ups lie inside the interval; the median error is %.1f%%.\n",
		len(all),
		100*s.near,
		100*predictedError,
		100*s.inside,
		100*s.off,
	)
	if wrong := chosen(all, func(v *predicted) bool { return v.mark() != "" }); len(wrong) > 0 {
		b.WriteString(
			"\nPredictions that missed:\n\n| # | program | change | predicted | interval | measured | of the pairs | " +
				"error |\n" +
				"|--:|---|---|--:|--:|--:|--:|--:|\n",
		)
		for _, v := range wrong {
			fmt.Fprintf(&b, "| %d | %s | %s | %.2f | %.2f to %.2f | %.2f | %.2f to %.2f | %+.1f%% |\n",
				v.number, v.scenario.name, v.Plan, v.Speedup, v.Low, v.High, v.Measured, v.Least, v.Most,
				100*v.off())
		}
	}
	return b.String() + missing(len(all), asked)
}

// tableGroup is all rows of one name.
type tableGroup[T any] struct {
	name string
	rows []T
}

// groupBy returns rows by name, the names in order.
func groupBy[T any](all []T, name func(T) string) []tableGroup[T] {
	var out []tableGroup[T]
	for _, row := range all {
		n := name(row)
		i, ok := slices.BinarySearchFunc(out, n,
			func(g tableGroup[T], n string) int { return strings.Compare(g.name, n) })
		if !ok {
			out = slices.Insert(out, i, tableGroup[T]{name: n})
		}
		out[i].rows = append(out[i].rows, row)
	}
	return out
}

// chosen returns the rows of which ok is true.
func chosen[T any](all []T, ok func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(all), func(row T) bool { return !ok(row) })
}

// span writes the least and the most of some figures, or the one that they all are.
func span(list []float64) string {
	low, high := fmt.Sprintf("%.2f", slices.Min(list)), fmt.Sprintf("%.2f", slices.Max(list))
	if low == high {
		return low
	}
	return low + " to " + high
}

// errorText writes the median of errors and, of several, the worst; "" where there is none.
func errorText(off []float64) string {
	switch len(off) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%.1f%%", 100*off[0])
	}
	return fmt.Sprintf("%.1f%% (%.1f%%)", 100*middle(off), 100*slices.Max(off))
}
