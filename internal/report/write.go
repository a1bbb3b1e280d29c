package report

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/inferscope/inferscope/internal/report/document"
)

// TextOptions describes what a text report is written on, and how long it may be.
type TextOptions struct {
	document.Style
	Rows  int  // at most so many rows in a table; 0 means 20
	ASCII bool // draw with characters that every terminal has
	Short bool // the answer alone, which fits a screen
}

// Rows of tables: a Markdown report is kept and searched, so it says more than a terminal.
const (
	textRows     = 20
	markdownRows = 100
)

// Text writes the model for a terminal, or for whatever takes plain text.
func Text(w io.Writer, m *Model, o TextOptions) error {
	if o.Rows == 0 {
		o.Rows = textRows
	}
	if o.Short {
		return document.Text(w, shortDocument(m, o.ASCII), o.Style)
	}
	return document.Text(w, newDocument(m, o.Rows, detail{textFindings, textEvidence, textFrames}, o.ASCII), o.Style)
}

// Markdown writes the model as GitHub-flavoured Markdown.
func Markdown(w io.Writer, m *Model) error {
	return document.Markdown(w, newDocument(m, markdownRows, detail{markdownFindings, moreEvidence, moreFrames}, false))
}

// JSON writes the model as JSON: an object that begins with Kind and Schema.
func JSON(w io.Writer, m *Model) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(m); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}
