package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/inferscope/inferscope/internal/capture/request"
)

// contentFlags say what is kept of prompts and answers.
type contentFlags struct {
	bytes  int
	redact []string
}

// defaultContent is how many bytes --capture-content keeps without a number.
const defaultContent = 1024

func (f *contentFlags) register(set *pflag.FlagSet) {
	const name = "capture-content"
	set.IntVar(&f.bytes, name, 0, fmt.Sprintf(
		"keep so many first bytes of each prompt and answer in recordings, %d at most, without what rules match; "+
			"off by default", request.MaxContent))
	set.Lookup(name).NoOptDefVal = strconv.Itoa(defaultContent)
	set.StringArrayVar(&f.redact, "redact", nil,
		"with --capture-content, leave out what this RE2 pattern matches too; can be repeated")
}

// content checks what was asked for.
func (f *contentFlags) content() (request.Content, error) {
	return request.NewContent(f.bytes, f.redact)
}

// warnings reports that content is kept, or why none is.
func (f *contentFlags) warnings(requests bool) []string {
	switch {
	case f.bytes == 0:
		return nil
	case !requests:
		return []string{"no content is kept, in spite of --capture-content: --requests=off"}
	}
	return []string{
		"prompts and answers are kept in recordings, reports and exports (--capture-content); rules leave out what " +
			"looks like credentials or personal data, and may miss some",
	}
}
