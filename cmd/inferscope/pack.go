package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/archive"
)

func packCommand(g *global) *cobra.Command {
	var output string
	var force bool
	cmd := &cobra.Command{
		Use:   "pack NAME.isc",
		Short: "Pack a recording into one file",
		Args:  oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			if info, err := os.Stat(args[0]); err == nil && !info.IsDir() {
				return clierror.New(clierror.Usage, "name a folder NAME.isc; unpack makes one of a NAME.isc.zip",
					fmt.Errorf("%s is a file already", format.Clean(args[0])))
			}
			if output == "" {
				output = strings.TrimSuffix(filepath.Clean(args[0]), archive.Extension) + archive.Packed
			}
			done := g.progress(cmd.Context(), progressAfter, doing("packing", args[0]))
			err := archive.Pack(args[0], output, force)
			done()
			return g.reportWritten(output, err)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write; NAME.isc.zip if it is left out")
	cmd.Flags().BoolVar(&force, "force", false, "replace an existing file")
	return cmd
}

func unpackCommand(g *global) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "unpack NAME.isc.zip",
		Short: "Unpack a recording into a folder, for DuckDB, pandas and others",
		Args:  oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output == "" {
				output = strings.TrimSuffix(strings.TrimSuffix(args[0], ".zip"), archive.Extension) + archive.Extension
			}
			done := g.progress(cmd.Context(), progressAfter, doing("unpacking", args[0]))
			err := archive.Unpack(args[0], output)
			done()
			return g.reportWritten(output, err)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "folder to write; NAME.isc if it is left out")
	return cmd
}

// reportWritten prints the path that was written, or returns err with what to do about it.
func (g *global) reportWritten(path string, err error) error {
	switch {
	case errors.Is(err, os.ErrExist):
		return clierror.New(clierror.Usage, "choose another name with -o", err)
	case err != nil:
		return recordingFault(err)
	}
	fmt.Fprintf(g.stderr, "inferscope: wrote %s\n", format.Clean(path))
	return nil
}
