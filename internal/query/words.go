package query

import (
	"errors"
	"strings"
)

// scan returns the words of a statement outside of texts and comments, in lower case, and refuses more than one
// statement: the tables of two would not fit into one output.
func scan(sql string) (words map[string]bool, err error) {
	words = map[string]bool{}
	ended := false
	for i := 0; i < len(sql); {
		c := sql[i]
		switch {
		case strings.HasPrefix(sql[i:], "--"):
			i = after(sql, i, "\n")
			continue
		case strings.HasPrefix(sql[i:], "/*"):
			i = after(sql, i+2, "*/")
			continue
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
			continue
		case ended && c != ';':
			return nil, errors.New("it is more than one statement")
		}
		switch {
		case c == ';':
			ended, i = true, i+1
		case c == '\'':
			i = quoted(sql, i)
		case c == '"':
			end := quoted(sql, i)
			words[strings.ToLower(strings.Trim(sql[i:end], `"`))] = true
			i = end
		case c == '$':
			i = dollar(sql, i)
		case isWord(c):
			end := i
			for end < len(sql) && isWord(sql[end]) {
				end++
			}
			word := strings.ToLower(sql[i:end])
			if i = end; word == "e" && i < len(sql) && sql[i] == '\'' {
				i = escaped(sql, i)
				continue
			}
			words[word] = true
		default:
			i++
		}
	}
	return words, nil
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// after returns where what follows the next end begins.
func after(sql string, from int, end string) int {
	if i := strings.Index(sql[min(from, len(sql)):], end); i >= 0 {
		return from + i + len(end)
	}
	return len(sql)
}

// quoted returns the end of a text or a name whose quote is at from. A doubled quote ends one and begins another, which
// is the same here.
func quoted(sql string, from int) int { return after(sql, from+1, sql[from:from+1]) }

// escaped returns the end of a text as E'...' has it, in which a backslash takes the next character's meaning.
func escaped(sql string, from int) int {
	for i := from + 1; i < len(sql); i++ {
		switch sql[i] {
		case '\\':
			i++
		case '\'':
			return i + 1
		}
	}
	return len(sql)
}

// dollar returns the end of $tag$ text $tag$, which may hold anything.
func dollar(sql string, from int) int {
	end := from + 1
	for end < len(sql) && isWord(sql[end]) {
		end++
	}
	if end == len(sql) || sql[end] != '$' {
		return end
	}
	return after(sql, end+1, sql[from:end+1])
}
