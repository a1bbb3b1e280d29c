package api

import (
	"errors"
	"fmt"
	"io/fs"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// DefaultAllow is who may have a process of their own watched unless the daemon is told otherwise: the members of this
// group, if there is one, and root.
const DefaultAllow = "@inferscope"

// Allow describes which unprivileged users may have processes of their own watched. The zero value admits none.
type Allow struct {
	all         bool
	uids, gids  []uint32
	description string
}

// String returns what ParseAllow has read.
func (a Allow) String() string { return a.description }

// ParseAllow reads "none", "all", or a list such as "alice,1001,@inference": users and, behind an @, groups, by name or
// number. The default group need not exist. The error is a clierror.Usage.
func ParseAllow(text string) (Allow, error) {
	a := Allow{description: text}
	switch text {
	case "none", "":
		a.description = "none"
		return a, nil
	case "all":
		a.all = true
		return a, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		if err := a.add(strings.TrimSpace(name)); err != nil {
			return Allow{}, clierror.New(clierror.Usage,
				`write none, all, or users and @groups with commas in between: "alice,@inferscope"`,
				fmt.Errorf("--allow-users %q: %w", text, err))
		}
	}
	return a, nil
}

func (a *Allow) add(name string) error {
	if group, ok := strings.CutPrefix(name, "@"); ok {
		gid, err := numberOf(group, func() (string, error) {
			g, err := user.LookupGroup(group)
			if err != nil {
				return "", err
			}
			return g.Gid, nil
		})
		var unknown user.UnknownGroupError
		// An image made of nothing but the programs has no /etc/group.
		if name == DefaultAllow && (errors.As(err, &unknown) || errors.Is(err, fs.ErrNotExist)) {
			return nil
		}
		a.gids = append(a.gids, gid)
		return err
	}
	uid, err := numberOf(name, func() (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	})
	a.uids = append(a.uids, uid)
	return err
}

// numberOf returns a name that is a number as it is, and what lookup knows of any other.
func numberOf(name string, lookup func() (string, error)) (uint32, error) {
	if name == "" {
		return 0, errors.New("a name is missing")
	}
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n), nil
	}
	text, err := lookup()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err
}

func (a Allow) admits(p peer) bool {
	return a.all || slices.Contains(a.uids, p.uid) ||
		slices.ContainsFunc(p.groups, func(gid uint32) bool { return slices.Contains(a.gids, gid) })
}

// SetAllow says which users may add targets; before it is called none but root and the daemon's own. It must be called
// before Serve.
func (s *Server) SetAllow(a Allow) { s.allow = a }

// mayAdd reports whether p may have a process of its own watched.
func (s *Server) mayAdd(p peer) error {
	if p.privileged(s.own) || s.allow.admits(p) {
		return nil
	}
	return clierror.New(
		clierror.Permission,
		"ask root to add you to the group inferscope (usermod -aG inferscope NAME; log in again), or to start the daemon with --allow-users",
		fmt.Errorf("%s may not have processes watched by this daemon (--allow-users %s)", p, s.allow),
	)
}

// changesAtOnce is how many changes a user may ask for at once: as many as there may be targets of one user, and back.
const changesAtOnce = 16

// mayChange bounds how often an unprivileged user changes something, and with that the lines of the log.
func (s *Server) mayChange(p peer) error {
	if p.privileged(s.own) || s.changeLimit.take(p.uid, time.Now()) {
		return nil
	}
	return clierror.New(clierror.General, "ask again in a few seconds",
		fmt.Errorf("%w: a user may change %g targets a second", ErrBusy, s.limits.Changes))
}
