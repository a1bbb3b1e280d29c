package main

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// account is the user that a program runs as when inferscope runs as root.
type account struct {
	name, home string
	credential syscall.Credential
}

var errNotRoot = errors.New("--user is for root")

// account looks up the user of --user, nil without one. Under sudo it suggests the flag.
func (g *global) account(name string) (*account, error) {
	if name == "" {
		if who, _ := g.environ.Get("SUDO_USER"); who != "" && who != "root" && os.Geteuid() == 0 {
			fmt.Fprintf(g.stderr, "inferscope: the program runs as root; --user %s runs it as %s\n",
				format.Clean(who), format.Clean(who))
		}
		return nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, clierror.New(clierror.Usage, "leave it out: the program runs as you do", errNotRoot)
	}
	a, err := findAccount(name)
	if err != nil {
		return nil, clierror.New(clierror.Usage, "name a user of this machine, or a number that id(1) knows",
			fmt.Errorf("--user: %w", err))
	}
	return a, nil
}

func findAccount(name string) (*account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		byID, missing := user.LookupId(name)
		if missing != nil {
			return nil, err
		}
		u = byID
	}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("find the groups of %s: %w", u.Username, err)
	}
	a := &account{name: u.Username, home: u.HomeDir}
	ids := make([]uint32, 0, len(groups)+2)
	for _, text := range append([]string{u.Uid, u.Gid}, groups...) {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("the id %q of %s or of a group is no number: %w", text, u.Username, err)
		}
		ids = append(ids, uint32(id))
	}
	a.credential = syscall.Credential{Uid: ids[0], Gid: ids[1], Groups: ids[2:]}
	return a, nil
}

// environ returns env with the user's home and name, as su(1) does.
func (a *account) environ(environ config.Environment) config.Environment {
	if a == nil {
		return environ
	}
	return append(environ, "HOME="+a.home, "USER="+a.name, "LOGNAME="+a.name) // of several the last one counts
}

// rights are the credentials for writing files of the program's user; nil: those of this process.
func (a *account) rights() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &a.credential
}
