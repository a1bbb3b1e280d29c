// Package doctor says what of this machine and of one process InferScope can use: for each thing that is not there,
// what is lost without it and how to get it. It changes nothing.
package doctor

import (
	"fmt"
	"io/fs"
	"os"

	"github.com/inferscope/inferscope/internal/capture/feature"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
)

// checkState is how a check ended.
type checkState string

// The states of a check.
const (
	stateOK      checkState = "ok"
	stateLimited checkState = "limited" // the rest works without it
	stateMissing checkState = "missing" // nothing works without it
	stateUnknown checkState = "unknown" // it could not be found out
	stateAbsent  checkState = "absent"  // it is not there, and nothing is wrong with that
)

// check is one thing that was looked at.
type check struct {
	Name  string     `json:"name"`
	State checkState `json:"state"`
	Found string     `json:"found,omitempty"` // what is there
	Lost  string     `json:"lost,omitempty"`  // what cannot be seen or done without it
	Fix   string     `json:"fix,omitempty"`   // how to get it
}

// section is what belongs together: the kernel, rights, the GPU, the target.
type section struct {
	Title  string  `json:"title"`
	Checks []check `json:"checks"`
}

// Diagnosis is everything that was looked at.
type Diagnosis struct {
	Kind     string    `json:"kind"`   // "inferscope.doctor"
	Schema   int       `json:"schema"` // 1: within one schema fields are only added
	Works    bool      `json:"works"`  // the daemon can work here
	ExitCode int       `json:"exit_code"`
	Problem  string    `json:"problem,omitempty"` // why it cannot
	Hint     string    `json:"hint,omitempty"`
	Sections []section `json:"sections"`
}

// Options are what to look at.
type Options struct {
	PID    int                     // 0: the machine alone
	Agents []recording.AgentStatus // of a daemon that runs, which knows what became of them
}

// machine is the file system and the system calls that checks use; tests replace them.
type machine struct {
	root fs.FS
	perf func(event) error
	host feature.Host
}

// Examine looks at this machine, and at a process where one is named. An error means that the process could not be
// looked at; what is known of the machine is returned all the same.
func Examine(o Options) (*Diagnosis, error) {
	m := &machine{root: os.DirFS("/"), perf: openEvent, host: feature.Prober{}.Detect()}
	d := m.diagnose()
	if o.PID == 0 {
		return d, nil
	}
	target, err := m.target(o)
	if err != nil {
		return d, err
	}
	d.Sections = append(d.Sections, target)
	return d, nil
}

// diagnose looks at the machine.
func (m *machine) diagnose() *Diagnosis {
	d := &Diagnosis{Kind: "inferscope.doctor", Schema: 1, Works: true, Sections: []section{
		{Title: "Kernel", Checks: m.kernel()},
		{Title: "Rights", Checks: m.rights()},
		{Title: "GPU", Checks: m.gpu()},
	}}
	if err := m.host.Check(); err != nil {
		d.Fail(err)
	}
	return d
}

// Fail notes that the daemon cannot work here, or not with this target.
func (d *Diagnosis) Fail(err error) {
	d.Works, d.Problem, d.Hint, d.ExitCode = false, err.Error(), clierror.HintOf(err), int(clierror.CodeOf(err))
}

// Count returns how many checks ended so.
func (d *Diagnosis) Count(s checkState) (n int) {
	for _, section := range d.Sections {
		for _, c := range section.Checks {
			if c.State == s {
				n++
			}
		}
	}
	return n
}

func (m *machine) read(name string) (string, error) {
	f, err := m.root.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	buf := make([]byte, 64<<10)
	n, err := f.Read(buf)
	if n == 0 && err != nil {
		return "", fmt.Errorf("read /%s: %w", name, err)
	}
	return string(buf[:n]), nil
}

// has reports whether there is such a file or folder.
func (m *machine) has(name string) bool {
	_, err := fs.Stat(m.root, name)
	return err == nil
}
