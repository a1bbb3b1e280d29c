package main

import (
	"fmt"
	"os"

	"github.com/inferscope/inferscope/internal/config"
	"github.com/inferscope/inferscope/internal/report/human"
)

// marginKey is the setting of the clock error above which a report warns.
const marginKey = "sync_error_margin_us"

// clockMargin returns that setting in ns: the flag goes over the environment, that over the
// settings file, that over the default.
func (g *global) clockMargin(typed string) (uint64, error) {
	flags := config.Values{Where: config.Flag, ByKey: map[string]string{}}
	if typed != "" {
		flags.ByKey[marginKey] = typed
	}
	file, err := config.ReadFile(config.FileName, 0, uint32(os.Geteuid()))
	if err != nil {
		return 0, err
	}
	for _, w := range file.Warnings {
		fmt.Fprintf(g.stderr, "inferscope: %s\n", human.Clean(w))
	}
	s, err := config.Load(config.Only(marginKey), flags, g.environ, file)
	return uint64(s.SyncErrorMarginUS) * 1000, err
}
