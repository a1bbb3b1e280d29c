package nvlibs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// suites are the Debian releases that carry the driver versions wanted.
func suites() []string { return []string{"bookworm", "trixie", "experimental"} }

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// fetchDebs downloads the newest packages of the versions wanted and unpacks them.
// apt works on configuration and lists of its own below scratch: the machine's
// sources stay as they are.
func fetchDebs(scratch, out string, debs []deb) error {
	components := "non-free"
	if slices.ContainsFunc(debs, func(d deb) bool { return d.main }) {
		components = "main non-free"
	}
	apt, err := newApt(scratch, components)
	if err != nil {
		return err
	}
	if _, err := apt.run("apt-get", "update"); err != nil {
		return err
	}
	for _, d := range debs {
		if err := apt.unpack(d, out); err != nil {
			return err
		}
	}
	return nil
}

func (a *apt) unpack(d deb, out string) error {
	listing, err := a.run("apt-cache", "madison", d.name)
	if err != nil {
		return err
	}
	version, ok := newest(listing, d.major)
	if !ok {
		return fmt.Errorf("the Debian mirror has no %s of version %s*", d.name, d.major)
	}
	if _, err := a.run("apt-get", "download", d.name+"="+version); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(a.dir, d.name+"_*.deb"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("apt-get download left %d packages of %s", len(files), d.name)
	}
	_, err = a.run("dpkg", "-x", files[0], out)
	return err
}

// newest picks the first version that begins with major from the table of
// apt-cache madison, which lists the newest first.
func newest(listing []byte, major string) (string, bool) {
	lines := bufio.NewScanner(bytes.NewReader(listing))
	for lines.Scan() {
		fields := strings.Split(lines.Text(), "|")
		if len(fields) == 3 && strings.HasPrefix(strings.TrimSpace(fields[1]), major) {
			return strings.TrimSpace(fields[1]), true
		}
	}
	return "", false
}

// apt runs apt's tools with a private configuration.
type apt struct {
	dir     string
	options []string
}

func newApt(dir, components string) (*apt, error) {
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%s is needed to fetch Debian packages: %w", tool, err)
		}
	}
	mirror, err := debianMirror()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "lists", "partial"), 0o755),
		os.MkdirAll(filepath.Join(dir, "cache", "archives", "partial"), 0o755),
		os.WriteFile(filepath.Join(dir, "status"), nil, 0o644),
		os.WriteFile(filepath.Join(dir, "sources.list"), sourcesList(mirror, components), 0o644),
	); err != nil {
		return nil, fmt.Errorf("prepare a private configuration of apt: %w", err)
	}
	return &apt{dir: dir, options: []string{
		"-q", "-o", "Dir::Etc::SourceList=" + filepath.Join(dir, "sources.list"),
		"-o", "Dir::Etc::SourceParts=/dev/null",
		"-o", "Dir::State::Lists=" + filepath.Join(dir, "lists"),
		"-o", "Dir::State::Status=" + filepath.Join(dir, "status"),
		"-o", "Dir::Cache=" + filepath.Join(dir, "cache"),
		"-o", "Acquire::Languages=none", "-o", "Acquire::Retries=0",
		"-o", "Acquire::http::Timeout=15", "-o", "Acquire::https::Timeout=15",
		"-o", "APT::Get::List-Cleanup=0", "-o", "APT::Update::Error-Mode=any",
	}}, nil
}

func (a *apt) run(tool string, args ...string) ([]byte, error) {
	if strings.HasPrefix(tool, "apt") {
		args = append(append([]string{}, a.options...), args...)
	}
	cmd := exec.Command(tool, args...)
	cmd.Dir = a.dir
	return output(cmd)
}

// output runs cmd and puts what it complained of into the error.
func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, lastLine(stderr.String()))
	}
	return out, nil
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

func sourcesList(mirror, components string) []byte {
	signed := ""
	if exists(keyring) {
		signed = "[signed-by=" + keyring + "] "
	}
	var b bytes.Buffer
	for _, suite := range suites() {
		fmt.Fprintf(&b, "deb %s%s %s %s\n", signed, mirror, suite, components)
	}
	return b.Bytes()
}

// debianMirror returns the address of the Debian mirror that the machine uses.
func debianMirror() (string, error) {
	out, err := output(
		exec.Command("apt-get", "indextargets", "--format", "$(REPO_URI) $(LABEL)", "Created-By: Packages"),
	)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(out)) {
		if uri, label, _ := strings.Cut(strings.TrimSpace(line), " "); label == "Debian" {
			return uri, nil
		}
	}
	return "", errors.New("apt's sources name no Debian mirror (on Debian, run apt-get update once)")
}
