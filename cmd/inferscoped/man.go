//go:build man

package main

import (
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// addMan adds the command that writes man pages into a folder; it is in no program that is installed.
func addMan(root *cobra.Command) {
	root.AddCommand(&cobra.Command{
		Use:    "__man DIR",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			seconds, _ := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64) // 1970 without it
			date := time.Unix(seconds, 0).UTC()
			root.DisableAutoGenTag = true
			return doc.GenManTree(
				root,
				&doc.GenManHeader{Section: "1", Source: "InferScope", Manual: "InferScope", Date: &date},
				args[0],
			)
		},
	})
}
