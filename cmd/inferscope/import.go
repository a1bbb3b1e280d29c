package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/importer"
)

const importHelp = `import makes a recording of what another profiler recorded: a trace of torch.profiler (Kineto,
.json or .json.gz), or the SQLite file of Nsight Systems (nsys export --type sqlite). Commands that read recordings
take such files as they are too; importing once is faster, and the file is smaller.

    inferscope import trace.json.gz -o trace.isc
    inferscope import report1.sqlite

Reports list what the other tool does not record under "sources".`

func importCommand(g *global) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "import FILE [-o NAME.isc]",
		Short: "Convert a torch.profiler or Nsight Systems trace to a recording",
		Long:  importHelp,
		Args:  cobra.ExactArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return g.importFile(cmd.Context(), args[0], output) },
	}
	cmd.Flags().
		StringVarP(&output, "output", "o", "", "folder to write; the file's name with .isc where it is left out")
	return cmd
}

func (g *global) importFile(ctx context.Context, path, output string) error {
	done := g.progress(ctx, progressAfter, doing("reading", path))
	rec, err := importer.OpenContext(ctx, path, importer.LimitsFor(g.maxMemory))
	done()
	if errors.Is(err, os.ErrNotExist) {
		return clierror.New(clierror.Usage, "check the name", err)
	}
	if err != nil {
		return clierror.New(clierror.General,
			"give the JSON of torch.profiler or the SQLite export of Nsight Systems, whole", err)
	}
	if output == "" {
		output = importedName(path)
	}
	done = g.progress(ctx, progressAfter, doing("writing", output))
	err = archive.Write(output, rec, clockOf(rec))
	done()
	if err != nil {
		return clierror.New(clierror.General, "choose another place with -o", err)
	}
	fmt.Fprintf(g.stderr, "inferscope: wrote %s: %s\n",
		format.Clean(output), format.Plural(len(rec.Events), "event", "events"))
	for _, s := range rec.Meta.Sources {
		fmt.Fprintf(g.stderr, "  %s, %s: %s\n", format.Clean(s.Name), s.State, format.CleanText(s.Detail))
	}
	return nil
}

// importedName is the name of the recording of a file: trace.json.gz becomes trace.isc, in the working directory.
func importedName(path string) string {
	name := filepath.Base(path)
	for _, ext := range []string{".gz", ".json", ".trace", ".pt", ".sqlite"} {
		name = strings.TrimSuffix(name, ext)
	}
	return name + ".isc"
}
