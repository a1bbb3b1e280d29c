package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/report/document"
)

func infoCommand(g *global) *cobra.Command {
	var asJSON, verify bool
	cmd := &cobra.Command{
		Use:   "info FILE",
		Short: "Show what a recording covers and whether it is complete",
		Args:  oneFile,
		RunE:  func(_ *cobra.Command, args []string) error { return g.info(args[0], asJSON, verify) },
	}
	cmd.Flags().BoolVar(&verify, "verify", false, "read every file and compare its checksum")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (g *global) info(path string, asJSON, verify bool) error {
	in, err := archive.Inspect(path, verify)
	if err != nil {
		return recordingFault(err)
	}
	if asJSON {
		err = writeJSON(g.stdout, in.Manifest)
	} else {
		err = document.Text(g.stdout, infoPage(in, verify), styleOf(g.stdout, g.environ))
	}
	if err != nil {
		return err
	}
	if bad := len(in.Missing) + len(in.Damaged); bad > 0 {
		return clierror.New(clierror.General, "record again, or copy it again from where it came",
			fmt.Errorf("missing or damaged in this recording: %s: %s",
				format.Plural(uint64(bad), "file", "files"), format.Clean(strings.Join(append(in.Missing, in.Damaged...), ", "))))
	}
	return nil
}

func infoPage(in *archive.Inspection, verified bool) *document.Document {
	m := in.Manifest
	d := &document.Document{Title: "InferScope recording"}
	d.Add(infoFacts(in, verified))
	if doubts := report.FromLosses(m.Losses); len(doubts) > 0 {
		d.Add(document.Heading("Losses and doubts"))
		for i := range doubts {
			d.Add(doubts[i].Notice())
		}
	}
	return d
}

func infoFacts(in *archive.Inspection, verified bool) document.Facts {
	m := in.Manifest
	var f document.Facts
	f.Add("Target", fmt.Sprintf("pid %d", m.Target))
	f.Add("Host", format.Clean(fmt.Sprintf("Linux %s, %s, %d CPUs", m.Host.Kernel, m.Host.Arch, m.Host.CPUs)))
	f.Add("Began", time.Unix(0, m.WallFrom).UTC().Format(time.RFC3339))
	f.Add(
		"Length",
		fmt.Sprintf("%.3f s in %s", float64(m.To-m.From)/1e9, format.Plural(len(m.Stretches), "stretch", "stretches")),
	)
	f.Add("Events", fmt.Sprintf("%d", m.Events()))
	f.Add("Size", memory(in.Bytes))
	f.Add("State", infoState(in, verified))
	if m.Clock != nil {
		f.Add("Clock error", clockFact(m.Clock))
	}
	if m.GPU != nil {
		f.Add("GPU activity", format.Clean(*m.GPU))
	}
	f.Add("Recorded by",
		format.Clean(fmt.Sprintf("inferscoped %s; written by %s, schema %d", m.Recorder, m.Writer, m.Schema)))
	if len(in.Unknown) > 0 {
		f.Add("Not understood", fmt.Sprintf("%d files, which are kept", len(in.Unknown)))
	}
	return f
}

func clockFact(c *archive.Clock) string {
	text := fmt.Sprintf("at least %.1f µs", float64(c.Error)/1e3)
	if c.Bound > 0 {
		text += fmt.Sprintf(", at most %.1f µs", float64(c.Bound)/1e3)
	}
	return fmt.Sprintf("%s, from %s of times", text, format.Plural(c.Pairs, "pair", "pairs"))
}

func infoState(in *archive.Inspection, verified bool) string {
	state := "complete"
	if in.Manifest.State != archive.Complete {
		state = "not finished: valid up to its last whole stretch"
	}
	if n := len(in.Unfinished); n > 0 {
		state += fmt.Sprintf("; lost: %s", format.Clean(strings.Join(in.Unfinished[:min(n, 5)], ", ")))
		if n > 5 {
			state += fmt.Sprintf(" and %d more", n-5)
		}
	}
	if verified {
		state += fmt.Sprintf("; every file read, %d missing, %d damaged", len(in.Missing), len(in.Damaged))
	}
	return state
}
