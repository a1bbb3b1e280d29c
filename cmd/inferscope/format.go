package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// The formats of a report.
const (
	formatText     = "text"
	formatMarkdown = "markdown"
	formatJSON     = "json"
	formatHTML     = "html"
)

func formats() []string { return []string{formatText, formatMarkdown, formatJSON, formatHTML} }

// reportFormatEnv names the setting report_format in the environment.
const reportFormatEnv = "INFERSCOPE_REPORT_FORMAT"

// choose returns the report format. Precedence: flag, file extension, configured value (if not ""), default.
func (f *reportFlags) choose(configured string) (string, error) {
	switch {
	case f.asJSON:
		return formatJSON, nil
	case f.format != "":
		return known("--format", strings.ToLower(f.format))
	}
	if format := byExtension(f.output); format != "" {
		return known("--output", format)
	}
	if configured != "" {
		return known(reportFormatEnv, configured)
	}
	if f.open {
		return formatHTML, nil
	}
	if f.output == "" || f.output == "-" {
		return formatText, nil
	}
	return formatMarkdown, nil
}

func known(where, format string) (string, error) {
	if format == "md" {
		format = formatMarkdown
	}
	if slices.Contains(formats(), format) {
		return format, nil
	}
	err := fmt.Errorf("%s: this version does not write %q", where, format)
	return "", clierror.New(clierror.Usage, "choose "+strings.Join(formats(), ", "), err)
}

// byExtension returns the format for the extension of a path, or "".
func byExtension(path string) string {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".md", ".markdown":
		return formatMarkdown
	case ".json":
		return formatJSON
	case ".txt":
		return formatText
	case ".html", ".htm":
		return formatHTML
	}
	return ""
}
