//go:build man

// Package manpage writes the man pages of the programs when a package is built (-tags man).
package manpage

import (
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Add adds the hidden command that writes man pages into a folder. Installed programs do not have it.
func Add(root *cobra.Command) {
	root.AddCommand(&cobra.Command{
		Use:    "__man DIR",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			seconds, _ := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64) // 1970 without it
			date := time.Unix(seconds, 0).UTC()
			root.DisableAutoGenTag = true
			return doc.GenManTree(root,
				&doc.GenManHeader{Section: "1", Source: "InferScope", Manual: "InferScope", Date: &date},
				args[0])
		},
	})
}
