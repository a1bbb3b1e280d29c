package discover

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestRules(t *testing.T) {
	server := subject{
		Name: "python3", Cmdline: "python3 -m vllm serve /models/a,b --port 8000",
		User: "alice", Cgroup: "/kubepods.slice/x",
		Pod: "prod/chat-0", PodUID: uid, Labels: map[string]string{"app": "chat", "tier": ""},
	}
	trainer := subject{Name: "python3", Cmdline: "python3 /home/bob/train.py", User: "bob", UID: "1001"}
	for _, c := range []struct {
		allow, deny string
		s           subject
		refused     string
	}{
		{"", "", trainer, ""},
		{"name=python*", "", server, ""},
		{"name=python", "", server, "no allow rule fits"},
		{"cmdline=*vllm serve*", "", server, ""},
		{"cmdline=*vllm serve*", "", trainer, "no allow rule fits"},
		{"cmdline=*train.py; user=alice", "", trainer, ""},
		{"name=python3,user=alice", "", trainer, "no allow rule fits"},
		{"name=python3,user=alice", "", server, ""},
		{`cmdline=*/a\,b*`, "", server, ""},
		{"pod=prod/*", "", server, ""},
		{"pod=prod/*", "", trainer, "no allow rule fits"},
		{"pod-uid=6c1b*", "", server, ""},
		{"pod-uid=7*", "", server, "no allow rule fits"},
		{"label=app=chat", "", server, ""},
		{"label=app=search", "", server, "no allow rule fits"},
		{"label=tier=*", "", server, ""},
		{"label=gone=*", "", server, "no allow rule fits"},
		{"cgroup=/kubepods*", "", server, ""},
		{"", "user=bob", trainer, "denied by user=bob"},
		{"", "user=1001", trainer, "denied by user=1001"},
		{"user=100", "", trainer, "no allow rule fits"},
		{"user=bob", "cmdline=*train.py", trainer, "denied by cmdline=*train.py"},
	} {
		r, err := ParseRules(c.allow, c.deny)
		must.NoError(t, err)
		if got := r.Refuse(c.s); got != c.refused {
			t.Errorf("allow %q, deny %q of %s: %q, want %q", c.allow, c.deny, c.s.Cmdline, got, c.refused)
		}
	}
}

// A program is refused where one of its processes is denied, and taken where one is allowed.
func TestRulesOfATree(t *testing.T) {
	worker, server := subject{
		Name:    "python3",
		Cmdline: "VLLM::Worker_TP0",
	}, subject{
		Name:    "python3",
		Cmdline: "vllm serve m",
	}
	r, err := ParseRules("cmdline=vllm serve*", "cmdline=VLLM::Worker_TP1")
	must.NoError(t, err)
	if why := r.Refuse(worker, server); why != "" {
		t.Errorf("a worker of an allowed server: %s", why)
	}
	if why := r.Refuse(subject{Cmdline: "VLLM::Worker_TP1"}, server); why == "" {
		t.Error("a tree with a denied process is taken")
	}
}

func TestBadRules(t *testing.T) {
	for _, text := range []string{"python", "exe=python", "name=", "label=app", "label==x", "name=[a", "name=a,,user=b", strings.Repeat("name=a;", maxRules+1)} {
		if _, err := ParseRules(text, ""); clierror.CodeOf(err) != clierror.Usage || clierror.HintOf(err) == "" {
			t.Errorf("%.40q: %v, want a usage error with a hint", text, err)
		}
	}
}

func FuzzRules(f *testing.F) {
	f.Add(`name=python*,user=alice; label=app=*\,x`, "python3")
	fuzzing.Run(f, func(t *testing.T, text, name string) {
		r, err := ParseRules(text, "")
		if err != nil {
			return
		}
		s := subject{Name: name, Cmdline: name, Labels: map[string]string{name: name}}
		r.Refuse(s)
		var all []string
		for _, a := range r.allow {
			all = append(all, a.String())
		}
		again, err := ParseRules(strings.Join(all, ";"), "")
		if err != nil || len(again.allow) != len(r.allow) {
			t.Errorf("%q is read back as %d rules (%v), want %d", all, len(again.allow), err, len(r.allow))
		}
	})
}
