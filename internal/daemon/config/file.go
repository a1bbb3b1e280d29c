package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// FileName is the settings file of a project; it lies in the working directory.
const FileName = ".inferscope.yaml"

// maxFile bounds a settings file, in bytes.
const maxFile = 64 << 10

// File is the layer of a settings file: one `key: value` a line, a YAML mapping
// without nesting.
type File struct {
	Values
	Warnings []string // why the file was not heeded

	path    string
	foreign string // why root takes no paths from it; "": it may
}

// DropPaths takes the settings that are paths out of a file that others than root can have written: root would
// write where they say. It returns a warning for each.
func (f *File) DropPaths() []string {
	if f.foreign == "" {
		return nil
	}
	var out []string
	for _, s := range all() {
		if value, there := f.ByKey[s.Key]; there && s.isPath() {
			delete(f.ByKey, s.Key)
			out = append(out,
				fmt.Sprintf("%s: %s is ignored, because %s: root takes no path (%q) from it; give it by %s",
					f.path, s.Key, f.foreign, clipped(value), s.Env))
		}
	}
	return out
}

// ReadFile reads a settings file; one that is not there gives an empty layer. Because a
// daemon of root reads it in whatever directory it is started in, only a file of an
// owner is heeded, one of these user ids, that nobody else may write to; another gives
// a warning. A file that is no flat mapping of known keys is a clierror.Usage.
func ReadFile(path string, owners ...uint32) (File, error) {
	out := File{
		path:   path,
		Values: Values{Where: func(key string) string { return path + ": " + key }, ByKey: map[string]string{}},
	}
	text, err := out.readOwned(path, owners)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return out, nil
	case err != nil:
		out.Warnings = []string{fmt.Sprintf("%s is not heeded: %v", path, err)}
		return out, nil
	}
	for i, line := range strings.Split(text, "\n") {
		key, value, err := entry(line)
		if err != nil {
			return out, clierror.New(clierror.Usage, "write one `key: value` a line",
				fmt.Errorf("%s:%d: %w", path, i+1, err))
		}
		if key == "" {
			continue
		}
		if _, twice := out.ByKey[key]; twice {
			return out, clierror.New(clierror.Usage, "write each key once",
				fmt.Errorf("%s:%d: %s stands there twice", path, i+1, clipped(key)))
		}
		if hint := unknownKey(key); hint != "" {
			return out, clierror.New(clierror.Usage, hint,
				fmt.Errorf("%s:%d: %s is not known", path, i+1, clipped(key)))
		}
		out.ByKey[key] = value
	}
	return out, nil
}

// readOwned reads a small regular file of one of the owners, and notes whether others can have written it.
func (f *File) readOwned(path string, owners []uint32) (string, error) {
	// Not blocking: a pipe in its place must not hold the daemon up.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return "", err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return "", errors.New("it is no regular file")
	}
	if !owned(&stat, owners) {
		return "", fmt.Errorf(
			"it belongs to user %d, or others may write to it: it has to be yours or root's (chmod go-w)",
			stat.Uid,
		)
	}
	if f.foreign, err = foreign(path, &stat); err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("it is larger than %d bytes", maxFile)
	}
	return string(b), err
}

// foreign reports which other user can have written a file, or put it where it is; "" where only root can.
func foreign(path string, file *unix.Stat_t) (string, error) {
	var dir unix.Stat_t
	if err := unix.Stat(filepath.Dir(path), &dir); err != nil {
		return "", err
	}
	switch {
	case file.Uid != 0:
		return fmt.Sprintf("it belongs to user %d", file.Uid), nil
	case dir.Uid != 0:
		return fmt.Sprintf("its directory belongs to user %d", dir.Uid), nil
	case dir.Mode&0o002 != 0 || dir.Mode&0o020 != 0 && dir.Gid != 0:
		return "others may write to its directory", nil
	}
	return "", nil
}

func owned(stat *unix.Stat_t, owners []uint32) bool {
	if stat.Mode&0o022 != 0 {
		return false
	}
	for _, uid := range owners {
		if stat.Uid == uid {
			return true
		}
	}
	return false
}

// entry reads one line; an empty key means that there is nothing on it.
func entry(line string) (key, value string, err error) {
	line = strings.TrimRight(line, " \t\r")
	if line == "" || line == "---" || strings.HasPrefix(strings.TrimLeft(line, " \t"), "#") {
		return "", "", nil
	}
	key, rest, ok := strings.Cut(line, ":")
	if !ok || key == "" || strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" ||
		rest != "" && rest[0] != ' ' && rest[0] != '\t' {
		return "", "", fmt.Errorf("%q is no `key: value`", clipped(line))
	}
	value, err = scalar(strings.TrimLeft(rest, " \t"))
	return key, value, err
}

// scalar reads a value: quoted, or plain up to a comment.
func scalar(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	if quote := s[0]; quote == '"' || quote == '\'' {
		inner, rest, ok := strings.Cut(s[1:], string(quote))
		rest = strings.TrimLeft(rest, " \t")
		if !ok || rest != "" && rest[0] != '#' || strings.Contains(inner, `\`) {
			return "", fmt.Errorf("%s cannot be read", clipped(s))
		}
		return inner, nil
	}
	if strings.ContainsRune("[{&*!|>%@`", rune(s[0])) {
		return "", fmt.Errorf("%q is no plain value", clipped(s))
	}
	if at := strings.Index(s, " #"); at >= 0 {
		s = s[:at]
	}
	return strings.TrimRight(s, " \t"), nil
}

// unknownKey says of a key that no setting has which one may have been meant; "" for a known one.
func unknownKey(key string) string {
	var keys []string
	for _, s := range all() {
		if s.Key == key {
			return ""
		}
		keys = append(keys, s.Key)
	}
	if near := nearest(key, keys); near != "" {
		return "did you mean " + near + "?"
	}
	return "the keys are " + strings.Join(keys, ", ")
}

func clipped(s string) string { return s[:min(len(s), maxShown)] }
