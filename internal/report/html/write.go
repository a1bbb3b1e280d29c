package html

import (
	"crypto/sha256"
	_ "embed" // the page's own script and style
	"encoding/base64"
	"fmt"
	"html"
	"io"
	"strings"
)

// The script and the style of the page: web/ bundled and made small by scripts/web.sh.
var (
	//go:embed assets/page.js
	script string
	//go:embed assets/page.css
	style string
)

// most is how large the block of a page may be, in bytes: so that the page stays below 2 MB.
const most = 1_850_000

// firstItems is how many items of the timeline are tried first; one takes 4 to 6 bytes in the end.
const firstItems = 320_000

// tries bounds how often a page that is too large is made again. The last one is taken, whatever its size.
const tries = 6

// Write writes the page.
func Write(w io.Writer, in Input) error {
	block, err := fit(in)
	if err != nil {
		return err
	}
	return write(w, in.Title, block)
}

// fit makes the block of a page, as fine as it may be.
func fit(in Input) (block string, err error) {
	doc, s := newDocument(in), newScene(in)
	shared := &columns{}
	list, fr := flames(in, threadNames(in))
	doc.addFlames(list, fr, shared)
	u := units{in.Timeline.From, doc.Quantum}
	for items, try := firstItems, 0; try < tries; try++ {
		how, tracks := s.finest(items)
		doc.addScene(s, how, tracks)
		c := &columns{b: append([]byte{}, shared.b...)}
		c.addTracks(u, tracks)
		if block, err = pack(doc, c); err != nil || len(block) <= most {
			return block, err
		}
		items = int(float64(items) * most / float64(len(block)) * 0.93)
	}
	return block, nil
}

// write writes the frame of the page. The policy lets the page's own script and style run, and nothing be fetched:
// what would come of a name that is markup after all could do nothing.
func write(w io.Writer, title, block string) error {
	policy := fmt.Sprintf(
		"default-src 'none'; script-src '%s'; style-src '%s'; img-src data:; base-uri 'none'; form-action 'none'",
		sum(script),
		sum(style),
	)
	parts := []string{
		"<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
		`<meta http-equiv="Content-Security-Policy" content="`, policy, "\">\n",

		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n",
		"<meta name=\"generator\" content=\"InferScope\">\n",
		"<title>", html.EscapeString(title), "</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>",
		style, "</style>\n</head>\n<body>\n",

		"<noscript>This report needs JavaScript to be shown; inferscope report --format markdown says the same in plain text.</noscript>\n",
		`<script type="application/octet-stream" id="data">`, block, "</script>\n<script>", script, "</script>\n</body>\n</html>\n",
	}
	if _, err := io.WriteString(w, strings.Join(parts, "")); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// sum is the hash of an inline script or style as a Content-Security-Policy names it.
func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return "sha256-" + base64.StdEncoding.EncodeToString(h[:])
}
