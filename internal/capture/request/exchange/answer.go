package exchange

import (
	"bytes"
	"math"
	"slices"
	"strings"
)

// TokenSource says how the numbers of tokens are known.
type TokenSource string

// The sources of token counts, from none to the best.
const (
	tokensUnknown TokenSource = ""
	Chunks        TokenSource = "chunks"  // counted: parts of a streamed answer with content; a lower bound of tokens
	Timings       TokenSource = "timings" // llama.cpp's and Ollama's own account
	Usage         TokenSource = "usage"   // the account in the answer
	maxField                  = 128
)

// frame takes one part of a streamed answer: a JSON object that may be cut off. It reports whether it carries content.
func (x *Exchange) frame(b []byte) (content bool) {
	var kind, text []byte
	var another, repeats bool
	scan(b, func(path [][]byte, v value) bool {
		x.identity(path, v)
		x.account(path, v)
		if x.Content != nil {
			switch {
			case is(path, "choices", "index"): // of several answers, the first is kept
				n, ok := v.number()
				another = another || ok && n > 0
			case v.kind == '"' && (isContent(path, v) || isDelta(path)):
				text, repeats = slices.Concat(text, v.raw), is(path, "text")
			}
		}
		switch {
		case is(path, "type"):
			kind = v.raw
		case v.some && isContent(path, v):
			content = true
		}
		return true
	})
	if len(kind) > 0 {
		content = isGenerated(kind)
	}
	if x.Content != nil && content && !another && isText(kind) {
		x.Content.part(text, repeats, x.Unreadable)
		x.Content.Answer.Cut = x.Content.Answer.Cut || len(b) >= maxLine-len("data: ")
	}
	return content
}

// isGenerated reports whether a part of this type carries what a model has generated: Anthropic, and OpenAI's
// responses, whose deltas are of texts, reasoning, refusals and arguments of calls.
func isGenerated(kind []byte) bool {
	return string(kind) == "content_block_delta" ||
		bytes.HasPrefix(kind, []byte("response.")) && bytes.HasSuffix(kind, []byte(".delta"))
}

// isText reports whether what a part of this type carries is text that is kept where content is asked for.
func isText(kind []byte) bool {
	switch string(kind) {
	case "", "content_block_delta", "response.output_text.delta", "response.reasoning_text.delta",
		"response.reasoning_summary_text.delta", "response.refusal.delta":
		return true
	}
	return false
}

// isContent reports whether a member that is not empty is what a model has generated.
func isContent(path [][]byte, v value) bool {
	if v.kind == 'n' || v.kind == 'f' {
		return false
	}
	last := string(path[len(path)-1])
	switch len(path) {
	case 1: // llama.cpp's own, Ollama, SGLang's own, Triton
		return v.kind == '"' &&
			(last == "content" || last == "response" || last == "thinking" || last == "text" || last == "text_output")
	case 2:
		switch string(path[0]) {
		case "choices":
			return last == "text" && v.kind == '"'
		case "message": // Ollama
			return v.kind == '"' && (last == "content" || last == "thinking") || last == "tool_calls"
		case "token": // TGI
			return last == "text" && v.kind == '"'
		}
	case 3:
		if string(path[0]) == "choices" && string(path[1]) == "delta" {
			switch last {
			case "content", "reasoning_content", "reasoning", "refusal":
				return v.kind == '"'
			case "tool_calls", "function_call":
				return true
			}
		}
	}
	return false
}

// identity takes the id and the model of an answer.
func (x *Exchange) identity(path [][]byte, v value) {
	if v.kind != '"' || len(path) > 2 {
		return
	}
	switch {
	case is(path, "id"), is(path, "message", "id"), is(path, "meta_info", "id"), is(path, "response", "id"):
		if x.ID == "" {
			x.ID = Printable(v.raw)
		}
	case is(path, "model"), is(path, "message", "model"):
		if x.Model == "" {
			x.Model = Printable(v.raw)
		}
	}
}

// account takes what an answer says of its tokens.
func (x *Exchange) account(path [][]byte, v value) {
	n, ok := v.number()
	if !ok {
		return
	}
	last := string(path[len(path)-1])
	switch {
	case len(path) == 1:
		switch last {
		case "prompt_eval_count", "tokens_evaluated":
			x.input(n, Timings)
		case "eval_count", "tokens_predicted":
			x.output(n, Timings)
		}
	case len(path) == 2 && string(path[0]) == "timings":
		switch last {
		case "prompt_n": // without those of cache_n
			x.evaluated = n
			x.input(sum(x.evaluated, x.reused), Timings)
		case "predicted_n":
			x.output(n, Timings)
		case "cache_n":
			x.CachedTokens, x.reused = n, n
			x.input(sum(x.evaluated, x.reused), Timings)
		}
	case len(path) <= 3 && (string(path[len(path)-2]) == "usage" || string(path[len(path)-2]) == "meta_info"):
		x.usage(last, n)
	case is(path, "usage", "prompt_tokens_details", "cached_tokens"), // and of OpenAI's Responses
		is(path, "usage", "input_tokens_details", "cached_tokens"),
		is(path, "response", "usage", "input_tokens_details", "cached_tokens"):
		x.CachedTokens = n
	case is(path, "details", "generated_tokens"): // TGI
		x.output(n, Usage)
	}
}

func (x *Exchange) usage(name string, n uint32) {
	switch name {
	case "prompt_tokens":
		x.input(n, Usage)
	case "input_tokens": // without those that Anthropic's API counts as read from the cache, or written to it
		x.fresh = n
		x.input(sum(x.fresh, x.readBack, x.written), Usage)
	case "cache_read_input_tokens":
		x.CachedTokens, x.readBack = n, n
		x.input(sum(x.fresh, x.readBack, x.written), Usage)
	case "cache_creation_input_tokens":
		x.written = n
		x.input(sum(x.fresh, x.readBack, x.written), Usage)
	case "completion_tokens", "output_tokens":
		x.output(n, Usage)
	case "cached_tokens":
		x.CachedTokens = n
	}
}

// sum adds numbers up that a server made up, perhaps.
func sum(list ...uint32) uint32 {
	n := uint64(0)
	for _, v := range list {
		n += uint64(v)
	}
	return uint32(min(n, math.MaxUint32))
}

func (x *Exchange) input(n uint32, source TokenSource) {
	if x.inputSource != Usage || source == Usage {
		x.InputTokens, x.inputSource = n, source
	}
}

func (x *Exchange) output(n uint32, source TokenSource) {
	if x.TokenSource != Usage || source == Usage {
		x.OutputTokens, x.TokenSource = n, source
	}
}

// document takes an answer that is one JSON document, of which the middle may be missing.
func (x *Exchange) document(head, tail []byte) {
	scan(head, func(path [][]byte, v value) bool {
		x.identity(path, v)
		x.account(path, v)
		if x.Content != nil && !x.Unreadable {
			x.Content.answers(path, v)
		}
		return true
	})
	if len(tail) == 0 {
		return
	}
	for _, key := range []string{
		"prompt_tokens", "input_tokens", "completion_tokens",
		"output_tokens", "cached_tokens", "cache_read_input_tokens",
		"cache_creation_input_tokens",
	} {
		if n, ok := member(tail, key); ok {
			x.usage(key, n)
		}
	}
}

// question takes the body of a request, of which the middle may be missing.
func (x *Exchange) question(head []byte) {
	scan(head, func(path [][]byte, v value) bool {
		if x.Content != nil {
			x.Content.asks(path, v)
		}
		if len(path) != 1 {
			return true
		}
		switch string(path[0]) {
		case "model":
			if v.kind == '"' {
				x.Model = Printable(v.raw)
			}
		}
		return true
	})
}

// Printable returns a short name that a target gave, without what a terminal would take for a command.
func Printable(b []byte) string {
	if len(b) > maxField {
		b = b[:maxField]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, string(b))
}

// Route returns the path of a request without what may be somebody's: no query, and no segment that is long or has
// many digits.
func Route(target []byte) string {
	if i := bytes.IndexAny(target, "?#"); i >= 0 {
		target = target[:i]
	}
	if i := bytes.Index(target, []byte("://")); i >= 0 {
		if j := bytes.IndexByte(target[i+3:], '/'); j >= 0 {
			target = target[i+3+j:]
		}
	}
	parts := strings.Split(Printable(target), "/")
	if len(parts) > 8 {
		parts = append(parts[:8], "*")
	}
	for i, p := range parts {
		digits := 0
		for _, c := range p {
			if c >= '0' && c <= '9' {
				digits++
			}
		}
		model := i > 0 && parts[i-1] == "models" // Triton: /v2/models/NAME/infer
		if !model && (len(p) > 32 || digits > 4) {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, "/")
}
