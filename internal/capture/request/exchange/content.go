package exchange

import (
	"encoding/json"
	"slices"
	"strings"
)

// Margin is how many bytes of a text are read beyond those that are wanted. What begins within these is seen whole, if
// it is not longer than the margin.
const Margin = 512

// Content is what was asked and answered, where that is to be kept.
type Content struct {
	Prompt, Answer Text

	role string // of the message whose text follows
}

// NewContent makes room for so many bytes of a prompt, and as many of its answer.
func NewContent(limit int) *Content {
	return &Content{Prompt: Text{limit: limit + Margin}, Answer: Text{limit: limit + Margin}}
}

// Text is the beginning of a text.
type Text struct {
	Bytes []byte
	Cut   bool // more of it follows, or the end was not seen

	limit int
}

// add takes a string of JSON, without its quotes.
func (t *Text) add(raw []byte) {
	if t.Cut {
		return
	}
	text := unescape(raw)
	if room := t.limit - len(t.Bytes); len(text) > room {
		text, t.Cut = text[:room], true
	}
	t.Bytes = append(t.Bytes, text...)
}

// line begins a new line, unless the text is empty.
func (t *Text) line() {
	if len(t.Bytes) > 0 {
		t.add([]byte(`\n`))
	}
}

// unescape returns what a string of JSON stands for, which may be cut off within an escape.
func unescape(raw []byte) string {
	const longest = len(`\ud83d\ude0`)
	quoted := slices.Concat([]byte{'"'}, raw, []byte{'"'})
	for range longest + 1 {
		var text string
		if json.Unmarshal(quoted, &text) == nil {
			return text
		}
		if len(quoted) == 2 {
			break
		}
		quoted = append(quoted[:len(quoted)-2], '"')
	}
	return ""
}

// asks takes a member of a request.
func (c *Content) asks(path [][]byte, v value) {
	switch {
	case v.kind != '"':
	case is(path, "messages", "role"), is(path, "input", "role"):
		c.role = Printable(v.raw)
	case isPrompt(path):
		c.Prompt.line()
		if c.role != "" {
			c.Prompt.add([]byte(c.role + ": "))
			c.role = ""
		}
		c.Prompt.add(v.raw)
	}
}

// isPrompt reports whether a string is what a client asks a model.
func isPrompt(path [][]byte) bool {
	switch string(path[0]) {
	case "prompt", "inputs", "text", "text_input", "instructions":
		return len(path) == 1
	case "system": // Anthropic's may have parts
		return len(path) == 1 || is(path, "system", "text")
	case "input": // OpenAI's embeddings and responses
		return len(path) == 1 || is(path, "input", "content") || is(path, "input", "content", "text")
	case "messages":
		return is(path, "messages", "content") || is(path, "messages", "content", "text")
	}
	return false
}

// answers takes a member of an answer that is one document.
func (c *Content) answers(path [][]byte, v value) {
	if v.kind == '"' && isAnswer(path, v) {
		c.Answer.line()
		c.Answer.add(v.raw)
	}
}

// isAnswer reports whether a string of an answer in one document is what a model has generated.
func isAnswer(path [][]byte, v value) bool {
	switch {
	case is(path, "choices", "message", "content"), is(path, "choices", "message", "reasoning_content"),
		is(path, "choices", "message", "reasoning"),
		is(path, "content", "text"), is(path, "content", "thinking"), // Anthropic
		is(path, "output", "content", "text"), // OpenAI's responses
		is(path, "generated_text"):            // TGI
		return true
	}
	return isContent(path, v)
}

// isDelta reports whether a string of a part whose type is told is what a model has generated: Anthropic, and OpenAI's
// responses.
func isDelta(path [][]byte) bool {
	return is(path, "delta") || is(path, "delta", "text") || is(path, "delta", "thinking")
}

// part takes the text of one part of a streamed answer, before which bytes may be missing. SGLang's own API repeats in
// each part what was before.
func (c *Content) part(raw []byte, repeats, missing bool) {
	t := &c.Answer
	t.Cut = t.Cut || missing
	if repeats && !t.Cut && strings.HasPrefix(unescape(raw), string(t.Bytes)) {
		t.Bytes = t.Bytes[:0]
	}
	t.add(raw)
}
