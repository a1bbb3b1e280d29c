//go:build !man

// Package manpage writes the man pages of the programs when a package is built (-tags man).
package manpage

import "github.com/spf13/cobra"

// Add does nothing in a program that is installed.
func Add(*cobra.Command) {}
