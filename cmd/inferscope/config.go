package main

import (
	"fmt"
	"os"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/format"
)

const configHelp = `config prints every setting as it is in force here, and where its value comes from.

A flag overrides the environment, which overrides the file .inferscope.yaml in the
working directory, which overrides the default:

    inferscope config
    INFERSCOPE_LOG_LEVEL=debug inferscope config --json

A running daemon has its own environment, and the file of the directory in which it
was started. The file is read only if it belongs to you or to root, and nobody else may
write to it. Root ignores report_path in a file that others than root can write to.`

// configRow is a setting in the JSON form.
type configRow struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"` // flag, environment variable or file; "default"
	Env    string `json:"environment"`
	Means  string `json:"means"`
}

func configCommand(g *global) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the settings and where each value comes from",
		Long:  configHelp,
		Args:  noArguments,
		RunE:  func(*cobra.Command, []string) error { return g.config(asJSON) },
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (g *global) config(asJSON bool) error {
	_, origins, err := g.origins(nil)
	if err != nil {
		return err
	}
	rows := make([]configRow, 0, len(origins))
	for _, o := range origins {
		row := configRow{Key: o.Key, Value: format.Clean(o.Value), Source: o.Where, Env: o.Env, Means: o.Means}
		if row.Source == "" {
			row.Source = "default"
		}
		rows = append(rows, row)
	}
	if asJSON {
		return writeJSON(g.stdout, rows)
	}
	table := tabwriter.NewWriter(g.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SETTING\tVALUE\tFROM\tENVIRONMENT\tMEANS")
	for _, r := range rows {
		if r.Value == "" {
			r.Value = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", r.Key, r.Value, r.Source, r.Env, r.Means)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	return nil
}

// settings returns the values in force. typed are the values of flags, by key.
func (g *global) settings(typed map[string]string) (config.Settings, error) {
	s, _, err := g.origins(typed)
	return s, err
}

// configured applies the settings of reports and returns the configured report format, or "". typed are the values of
// flags, by key.
func (g *global) configured(typed map[string]string) (format string, err error) {
	s, origins, err := g.origins(typed)
	if err != nil {
		return "", err
	}
	g.apply(&s)
	for _, o := range origins {
		if o.Key == "report_format" && o.Where != "" {
			format = s.ReportFormat
		}
	}
	return format, nil
}

// apply takes the settings that reports depend on.
func (g *global) apply(s *config.Settings) {
	g.margin, g.single = uint64(s.SyncErrorMarginUS)*1000, s.SingleGPU
}

// origins is like settings and also returns where each value comes from. A settings file that is ignored causes a
// warning.
func (g *global) origins(typed map[string]string) (config.Settings, []config.Origin, error) {
	file, err := config.ReadFile(config.FileName, g.users()...)
	if err != nil {
		return config.Settings{}, nil, err
	}
	warnings := file.Warnings
	if os.Geteuid() == 0 {
		warnings = append(warnings, file.DropPaths()...)
	}
	for _, w := range warnings {
		if !g.warned[w] {
			g.warned[w] = true
			fmt.Fprintf(g.stderr, "inferscope: warning: %s\n", format.CleanText(w))
		}
	}
	all := func(config.Setting) bool { return true }
	return config.Explain(all, config.Values{Where: config.Flag, ByKey: typed}, g.environ, file)
}

// users returns the owners whose settings files are read: root, this user, and the user who called sudo.
func (g *global) users() []uint32 {
	out := []uint32{0, uint32(os.Geteuid())}
	text, _ := g.environ.Get("SUDO_UID")
	if uid, err := strconv.ParseUint(text, 10, 32); err == nil && os.Geteuid() == 0 {
		out = append(out, uint32(uid))
	}
	return out
}
