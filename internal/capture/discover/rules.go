package discover

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// Rules say which processes are watched: those that an allow rule fits, or all where there is none, and that no deny
// rule fits.
type Rules struct {
	allow, deny []rule
}

// rule is a list of conditions that must all hold.
type rule []condition

type condition struct {
	key     string // one of keys
	label   string // of key label: its name
	pattern string // * stands for any text, ? for a character
}

// subject is what rules are asked about: a process, with where it runs.
type subject struct {
	Name    string // comm
	Cmdline string
	User    string // name, or number where it has none here
	UID     string // number: in a container names of the host are not known
	Cgroup  string
	Pod     string // NAMESPACE/NAME; "" outside of Kubernetes
	PodUID  string
	Labels  map[string]string
}

const hintRules = "write rules like name=python*; user=alice, cmdline=*vllm serve*; label=app=chat; keys are name, cmdline, user, cgroup, pod (NAMESPACE/NAME), pod-uid and label; , joins conditions, ; separates rules"

// maxRules bounds the rules of one kind, and the conditions of one rule.
const maxRules = 256

// ParseRules reads rules: conditions KEY=PATTERN joined by commas, rules separated by semicolons. A comma in a pattern
// is written \,. The error is a clierror.Usage.
func ParseRules(allow, deny string) (Rules, error) {
	var r Rules
	var err error
	if r.allow, err = parse(allow); err == nil {
		r.deny, err = parse(deny)
	}
	if err != nil {
		return Rules{}, clierror.New(clierror.Usage, hintRules, err)
	}
	return r, nil
}

func parse(text string) ([]rule, error) {
	var out []rule
	for part := range strings.SplitSeq(text, ";") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		r, err := parseRule(part)
		if err != nil {
			return nil, err
		}
		if out = append(out, r); len(out) > maxRules {
			return nil, fmt.Errorf("more than %d rules", maxRules)
		}
	}
	return out, nil
}

func parseRule(text string) (rule, error) {
	var out rule
	const comma = "\x00"
	for c := range strings.SplitSeq(strings.ReplaceAll(text, `\,`, comma), ",") {
		key, pattern, ok := strings.Cut(strings.TrimSpace(strings.ReplaceAll(c, comma, ",")), "=")
		k := condition{key: key, pattern: pattern}
		if !ok || !slices.Contains([]string{"name", "cmdline", "user", "cgroup", "pod", "pod-uid", "label"}, key) {
			return nil, fmt.Errorf("%q is not KEY=PATTERN with a known key", clip(c))
		}
		if key == "label" {
			if k.label, k.pattern, ok = strings.Cut(pattern, "="); !ok || k.label == "" {
				return nil, fmt.Errorf("%q is not label=NAME=PATTERN", clip(c))
			}
		}
		if k.pattern == "" {
			return nil, fmt.Errorf("%q has no pattern", clip(c))
		}
		if _, err := path.Match(k.glob(), ""); err != nil {
			return nil, fmt.Errorf("%q: %w", clip(c), err)
		}
		if out = append(out, k); len(out) > maxRules {
			return nil, errors.New("a rule has too many conditions")
		}
	}
	return out, nil
}

// clip bounds what an error repeats, in bytes.
func clip(s string) string { return s[:min(len(s), 128)] }

// slash stands for / in patterns and texts, because path.Match gives it a meaning of its own.
var slash = strings.NewReplacer("/", "\x01")

func (c *condition) glob() string { return slash.Replace(c.pattern) }

func (c *condition) holds(s *subject) bool {
	text := ""
	switch c.key {
	case "name":
		text = s.Name
	case "cmdline":
		text = s.Cmdline
	case "user":
		if c.pattern == s.UID {
			return true
		}
		text = s.User
	case "cgroup":
		text = s.Cgroup
	case "pod":
		text = s.Pod
	case "pod-uid":
		text = s.PodUID
	case "label":
		value, there := s.Labels[c.label]
		if !there {
			return false
		}
		text = value
	}
	ok, _ := path.Match(c.glob(), slash.Replace(text))
	return ok
}

func (r rule) fits(s *subject) bool {
	for i := range r {
		if !r[i].holds(s) {
			return false
		}
	}
	return true
}

// String writes a rule as it was read.
func (r rule) String() string {
	parts := make([]string, 0, len(r))
	for _, c := range r {
		text := c.key + "="
		if c.label != "" {
			text += c.label + "="
		}
		parts = append(parts, text+strings.ReplaceAll(c.pattern, ",", `\,`))
	}
	return strings.Join(parts, ",")
}

// Refuse reports why none of these subjects, the processes of one program, is to be watched; "" where it is. One that a
// deny rule fits is enough to refuse all.
func (r *Rules) Refuse(subjects ...subject) string {
	allowed := len(r.allow) == 0
	for i := range subjects {
		for _, d := range r.deny {
			if d.fits(&subjects[i]) {
				return "denied by " + d.String()
			}
		}
		allowed = allowed || slices.ContainsFunc(r.allow, func(a rule) bool { return a.fits(&subjects[i]) })
	}
	if !allowed {
		return "no allow rule fits"
	}
	return ""
}
