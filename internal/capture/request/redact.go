package request

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/inferscope/inferscope/internal/capture/request/exchange"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
)

// MaxContent is the most bytes that can be kept of a prompt, and of an answer: the kernel copies 4 KiB of a transfer.
const MaxContent = 4096

// redacted stands for what a rule matches.
const redacted = "[redacted]"

// builtin are the rules that always hold: headers and settings with secrets, keys by their shapes, addresses, and long
// numbers, as of cards, accounts and telephones.
var builtin = []*regexp.Regexp{
	regexp.MustCompile(`(?i)\b(?:proxy-)?authorization["']?\s*[:=]\s*["']?(?:[a-z]+\s+)?[^\s"']+`),
	regexp.MustCompile(`(?i)\b(?:bearer|basic)\s+[a-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`(?i)\b(?:set-)?cookie["']?\s*:[^\n]*`),
	regexp.MustCompile(`(?i)[\w-]*(?:api[-_ ]?key|secret|token|passw(?:or)?d|passphrase)["']?` +
		`\s*(?:[:=]|\bis\b)\s*["']?[^\s"',;]+`),
	regexp.MustCompile(
		`\b(?:sk|pk|rk|hf|gh[opsur]|github_pat|glpat|xox[abeprs]|AIza|AKIA|ASIA|eyJ)[-_A-Za-z0-9.]{12,}`),
	regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*`),
	regexp.MustCompile(`[\pL\pN._%+-]+@[\pL\pN-]+(?:\.[\pL\pN-]+)+`),
	regexp.MustCompile(`\+?\pN(?:[ ./()-]{0,2}\pN){7,}`),
}

// Content says what is kept of prompts and answers. The zero value keeps nothing.
type Content struct {
	bytes int
	rules []*regexp.Regexp
}

// NewContent keeps so many bytes of each prompt and of each answer, without what one of the patterns (RE2) or a rule of
// our own matches.
func NewContent(bytes int, patterns []string) (Content, error) {
	c := Content{bytes: bytes, rules: builtin[:len(builtin):len(builtin)]}
	if bytes < 0 || bytes > MaxContent {
		return c, clierror.New(
			clierror.Usage,
			fmt.Sprintf("choose 0 to %d bytes", MaxContent),
			fmt.Errorf("--capture-content: %d is out of range", bytes),
		)
	}
	if len(patterns) > 0 && bytes == 0 {
		return c, clierror.New(
			clierror.Usage,
			"add --capture-content, or leave --redact out",
			fmt.Errorf("--redact: no content is kept"),
		)
	}
	for _, p := range patterns {
		rule, err := regexp.Compile(p)
		if err != nil {
			return c, clierror.New(clierror.Usage, "patterns have the syntax of RE2", fmt.Errorf("--redact: %w", err))
		}
		c.rules = append(c.rules, rule)
	}
	return c, nil
}

// on reports whether anything is kept.
func (c *Content) on() bool { return c.bytes > 0 }

// detail says what is kept; "": nothing.
func (c *Content) detail() string {
	if !c.on() {
		return ""
	}
	return fmt.Sprintf("the first %d bytes of each prompt and answer are kept (--capture-content)", c.bytes)
}

// describe gives a request that is over its prompt and its answer.
func (c *Content) describe(r *recording.Request, x *exchange.Exchange) {
	if x.Content == nil {
		return
	}
	answer := &x.Content.Answer
	answer.Cut = answer.Cut || x.Outcome != exchange.Complete
	r.Prompt, r.Answer = c.redact(&x.Content.Prompt), c.redact(answer)
}

// redact returns the beginning of a text without what rules match. Where the end of the text was not seen, a secret may
// have been cut there so that no rule matches it: what lies so near to it is left out.
func (c *Content) redact(t *exchange.Text) string {
	keep := len(t.Bytes)
	if t.Cut {
		keep = max(0, keep-exchange.Margin)
	}
	keep = min(keep, c.bytes)
	hidden := make([]bool, len(t.Bytes)+1)
	for _, rule := range c.rules {
		for _, at := range rule.FindAllIndex(t.Bytes, -1) {
			for i := at[0]; i < at[1]; i++ {
				hidden[i] = true
			}
		}
	}
	var out strings.Builder
	for from := 0; from < keep; {
		to := from + 1
		for to < keep && hidden[to] == hidden[from] {
			to++
		}
		if hidden[from] {
			out.WriteString(redacted)
		} else {
			out.Write(t.Bytes[from:to])
		}
		from = to
	}
	return strings.ToValidUTF8(out.String(), "")
}
