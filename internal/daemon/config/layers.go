package config

import (
	"slices"
	"strings"
)

// Environment is the layer of INFERSCOPE_* variables, as os.Environ writes them.
type Environment []string

// Lookup finds a setting's variable. One that is empty counts as unset, as shells and manifests leave them.
func (e Environment) Lookup(s Setting) (value, where string, ok bool) {
	v, ok := e.Get(s.Env)
	return v, s.Env, ok && v != ""
}

// Get returns the value of a variable. It takes the last of several values, as execve(2) hands them on and Go reads
// them.
func (e Environment) Get(name string) (string, bool) {
	for _, kv := range slices.Backward(e) {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			return v, true
		}
	}
	return "", false
}

// Values is a layer of values under their keys: what a person typed as flags, or a file.
type Values struct {
	Where func(key string) string // how to name a value's place, e.g. "--trace-size-mb"
	ByKey map[string]string
}

// Lookup finds a setting by its key.
func (v Values) Lookup(s Setting) (value, where string, ok bool) {
	value, ok = v.ByKey[s.Key]
	return value, v.Where(s.Key), ok
}

// Flag writes a key as a flag.
func Flag(key string) string { return "--" + strings.ReplaceAll(key, "_", "-") }

// prefix is what all variables of this project begin with.
const prefix = "INFERSCOPE_"

// maxShown bounds what a warning repeats of a name, in bytes.
const maxShown = 128

// others are variables that are no settings: the socket, what the unit, the Python package and the
// tests use, and what `inferscope run` tells its program.
func others() []string {
	return []string{
		"INFERSCOPE_SOCKET", "INFERSCOPE_PID", "INFERSCOPE_ARGS", "INFERSCOPE_BIN", "INFERSCOPE_RUN",
		"INFERSCOPE_NVLIBS_DIR",
	}
}

// Warnings says of each unknown INFERSCOPE_* variable that it does nothing, and which one may have been meant.
func (e Environment) Warnings() []string {
	known := others()
	for _, s := range all() {
		known = append(known, s.Env)
	}
	var out []string
	for _, kv := range e {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, prefix) || slices.Contains(known, name) {
			continue
		}
		msg := name[:min(len(name), maxShown)] + " is not known and does nothing"
		if near := nearest(name, known); near != "" {
			msg += "; did you mean " + near + "?"
		}
		out = append(out, msg)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// nearest returns the name that fewest edits away from name, or "" where none resembles it.
func nearest(name string, known []string) string {
	if len(name) > maxShown { // a hostile environment must not cost more than a name is worth
		return ""
	}
	rest := strings.TrimPrefix(name, prefix)
	best, bestDistance := "", len(rest)/2+1
	for _, k := range known {
		if d := distance(rest, strings.TrimPrefix(k, prefix)); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// distance is Levenshtein's, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(row[j]+1, row[j+1]+1, diagonal+cost)
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}
