package genai

import "encoding/json"

// part is a part of a message, and message one, as the conventions' attributes with content have them.
type part struct {
	Type    string `json:"type"`
	Content string `json:"content"`
}

type message struct {
	Role  string `json:"role"`
	Parts []part `json:"parts"`
}

// Message returns gen_ai.input.messages or gen_ai.output.messages of a text; "": there is none.
func Message(role, text string) string {
	if text == "" {
		return ""
	}
	out, err := json.Marshal([]message{{Role: role, Parts: []part{{Type: "text", Content: text}}}})
	if err != nil {
		return "" // strings have no error
	}
	return string(out)
}
