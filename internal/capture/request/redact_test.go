package request

import (
	"fmt"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/request/exchange"
	"github.com/inferscope/inferscope/internal/capture/request/http1"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// answered returns what is kept of one request over HTTP/1.1, of which each transfer is as the kernel shows it.
func answered(t *testing.T, content Content, question string, answer ...string) recording.Request {
	t.Helper()
	f := newFeeding(content)
	c := &conn{feed: &f}
	c.http = http1.New(c)
	transfer := func(text string) exchange.Transfer {
		out := exchange.Transfer{TS: 1, Bytes: len(text), Head: []byte(text)}
		if len(text) > 4096 {
			out.Head, out.Tail = out.Head[:4096], out.Head[4096:][max(0, len(text)-4096-1024):]
		}
		return out
	}
	c.http.Received(transfer(fmt.Sprintf(
		"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer canary-of-a-header\r\nContent-Length: %d\r\n\r\n%s",
		len(question), question,
	)))
	for _, a := range answer {
		c.http.Sent(transfer(a))
	}
	c.http.Closed(2)
	if len(f.fresh) != 1 {
		t.Fatalf("%d requests", len(f.fresh))
	}
	return f.fresh[0]
}

func plainAnswer(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body)
}

func streamed(parts ...string) []string {
	out := []string{"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"}
	for _, p := range parts {
		data := "data: " + p + "\n\n"
		out = append(out, fmt.Sprintf("%x\r\n%s\r\n", len(data), data))
	}
	return append(out, "0\r\n\r\n")
}

func keeping(t *testing.T, bytes int, patterns ...string) Content {
	t.Helper()
	c, err := NewContent(bytes, patterns)
	must.NoError(t, err)
	return c
}

// TestContentOfDialects: what is kept of the prompts and answers of each API, and nothing unless that was asked for.
func TestContentOfDialects(t *testing.T) {
	for _, c := range []struct {
		name, question string
		answer         []string
		prompt, said   string
	}{
		{
			"chat", `{"messages":[{"role":"system","content":"be kind"},` +
				`{"role":"user","content":[{"type":"text","text":"a \"b\"\n\u00fc"}]}]}`,
			streamed(
				`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`,
				`{"choices":[{"index":0,"delta":{"content":"x"}}]}`, `{"choices":[{"index":0,"delta":{"content":"x"}}]}`,
				`{"choices":[{"delta":{"content":"no"},"index":1}]}`, `{"choices":[{"index":0,"delta":{"content":" \u00e9"}}]}`,
				`{"choices":[],"usage":{"completion_tokens":3}}`, `[DONE]`,
			),
			"system: be kind\nuser: a \"b\"\nü", "xx é",
		},
		{
			"completions", `{"prompt":["one","two"]}`,
			[]string{plainAnswer(`{"choices":[{"text":"first"},{"text":"second"}]}`)},
			"one\ntwo", "first\nsecond",
		},
		{
			"Anthropic", `{"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"q"}]}`,
			streamed(`{"type":"message_start","message":{"id":"1"}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"he"}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"llo"}}`,
				`{"type":"message_stop"}`),
			"s\nuser: q", "hello",
		},
		{
			"OpenAI's responses", `{"instructions":"i","input":[{"role":"user","content":"q"}]}`,
			streamed(`{"type":"response.output_text.delta","delta":"he"}`,
				`{"type":"response.output_text.delta","delta":"y"}`,
				`{"type":"response.output_text.done","text":"hey"}`),
			"i\nuser: q", "hey",
		},
		{
			"SGLang's own", `{"text":"q"}`, streamed(`{"text":"a"}`, `{"text":"a b"}`, `{"text":"a b"}`), "q", "a b",
		},
		{
			"answer that is aborted", `{"prompt":"q"}`,
			streamed(`{"choices":[{"text":"sk-"}]}`)[:2], "q", "",
		},
	} {
		r := answered(t, keeping(t, 100), c.question, c.answer...)
		if r.Prompt != c.prompt || r.Answer != c.said {
			t.Errorf("%s: %q, %q; want %q, %q", c.name, r.Prompt, r.Answer, c.prompt, c.said)
		}
		if r := answered(t, Content{}, c.question, c.answer...); r.Prompt != "" || r.Answer != "" {
			t.Errorf("%s: content that was not asked for: %+v", c.name, r)
		}
	}
}

// TestRedaction: what rules match is left out, wherever parts of an answer or the bound cut it.
func TestRedaction(t *testing.T) {
	for _, secret := range []string{
		"Authorization: Bearer abc.def", "authorization=canary", `"X-Api-Key": "canary"`, "password is canary",
		"sk-canary0123456789abcdef", "hf_canaryABCDEFGHIJ", "alice.canary@example.com", "4111 1111 1111 1111",
		"+49 30 1234567", "Cookie: a=canary; b=canary",
		"-----BEGIN RSA PRIVATE KEY-----\ncanary\n-----END RSA PRIVATE KEY-----",
		"Bearer canarycanary", "canary of ours",
	} {
		content := keeping(t, 40, "canary of ours")
		escaped := strings.NewReplacer("\n", `\n`, `"`, `\"`).Replace(secret)
		var parts []string
		for _, letter := range secret {
			parts = append(parts, fmt.Sprintf(`{"choices":[{"text":%q}]}`, string(letter)))
		}
		for before := range 40 {
			pad := strings.Repeat(". ", before/2)
			r := answered(t, content, `{"prompt":"`+pad+escaped+` end"}`,
				streamed(append([]string{`{"choices":[{"text":"` + pad + `"}]}`}, parts...)...)...)
			for _, text := range []string{r.Prompt, r.Answer} {
				rest := strings.NewReplacer(redacted, "").Replace(text)
				if len(rest) > 40 || !strings.Contains(text, redacted) ||
					strings.ContainsAny(rest, "abcfgijklmpqrstuwxyz0123456789") {
					t.Errorf("%q behind %d characters: %q", secret, len(pad), text)
				}
			}
		}
	}
	plain := "The 3 foxes at 10:45 jumped over 1,024 dogs; token by token."
	if r := answered(t, keeping(t, 100), `{"prompt":"`+plain+`"}`); r.Prompt != plain {
		t.Errorf("%q", r.Prompt)
	}
}

// TestContentOfLongBodies: a body of which not all was seen ends where half a secret cannot stand.
func TestContentOfLongBodies(t *testing.T) {
	word := strings.Repeat("ab cd ", 2000)
	r := answered(t, keeping(t, MaxContent), `{"prompt":"`+word+`"}`, plainAnswer(`{"response":"`+word+`"}`))
	for _, text := range []string{r.Prompt, r.Answer} {
		if len(text) < 3000 || len(text) > 4096-exchange.Margin || !strings.HasPrefix(word, text) {
			t.Errorf("%d bytes are kept", len(text))
		}
	}
	for _, bad := range []struct {
		bytes    int
		patterns []string
	}{{-1, nil}, {MaxContent + 1, nil}, {0, []string{"a"}}, {1, []string{"("}}} {
		if _, err := NewContent(bad.bytes, bad.patterns); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// TestTextIsBounded: the oldest texts go first, and that is counted.
func TestTextIsBounded(t *testing.T) {
	f := newFeeding(keeping(t, MaxContent))
	const each = maxText / 64
	for i := range 100 {
		f.fresh = append(f.fresh, recording.Request{Number: uint64(i), End: uint64(i), Prompt: strings.Repeat("a", each)})
		f.settle(len(f.fresh))
	}
	kept, first := 0, -1
	for i, r := range f.ended {
		kept += len(r.Prompt)
		if r.Prompt != "" && first < 0 {
			first = i
		}
	}
	if kept != f.text || kept > maxText || kept < maxText/2 || uint64(first) != f.textless || len(f.ended) != 100 {
		t.Errorf("%d bytes of %d requests from %d on; %d counted, %d said", kept, len(f.ended), first, f.textless, f.text)
	}
	f.forget(100)
	if f.text != 0 {
		t.Errorf("%d bytes of no request", f.text)
	}
}
