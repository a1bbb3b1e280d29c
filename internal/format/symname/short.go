package symname

import "strings"

const (
	// maxKept is how long the template arguments may be that are kept.
	maxKept = 24 // bytes
	// maxNested is how deep shorten looks into Rust's <T as Trait>.
	maxNested = 4
)

// unnamed is what the demangler calls a namespace without a name.
const unnamed = "(anonymous namespace)::"

// shorten shortens a demangled C++ or Rust name for people. Of template arguments the
// leading plain ones are kept, and the rest is "...": vectorized_elementwise_kernel<4, ...>.
// Parameters, of lambdas and of the functions around them too, and unnamed namespaces go.
// It takes any string.
func shorten(s string, depth int) string {
	var out strings.Builder
	for i := 0; i < len(s); {
		switch {
		case strings.HasPrefix(s[i:], unnamed):
			i += len(unnamed)
		case operatorAt(s, i) > 0:
			n := operatorAt(s, i)
			out.WriteString(s[i : i+n])
			i += n
		case s[i] == '<':
			end := closing(s, i)
			if i == 0 && depth < maxNested { // Rust: <Type>::method, <Type as Trait>::method
				out.WriteString("<" + shorten(s[1:end], depth+1) + ">")
			} else {
				out.WriteString(arguments(s[i+1 : end]))
			}
			i = end + 1
		case s[i] == '{':
			end := closing(s, i)
			out.WriteString(closure(s[i:min(end+1, len(s))]))
			i = end + 1
		case s[i] == '(':
			end := closing(s, i)
			out.WriteString("()")
			i = end + 1
		default:
			out.WriteByte(s[i])
			i++
		}
	}
	return tidy(out.String())
}

// tidy removes the empty parameters that are left: f()::{lambda#1}::operator()() const.
func tidy(s string) string {
	s = strings.ReplaceAll(s, "operator()", "operator\x00")
	s = strings.ReplaceAll(s, "() const", "")
	s = strings.ReplaceAll(s, "()", "")
	return strings.TrimSpace(strings.ReplaceAll(s, "operator\x00", "operator()"))
}

// operatorAt returns the length of "operator" and its symbol at i, 0 where there is none.
// The longest symbols come first.
func operatorAt(s string, i int) int {
	const word = "operator"
	if !strings.HasPrefix(s[i:], word) || i > 0 && isWord(s[i-1]) {
		return 0
	}
	rest := s[i+len(word):]
	for _, symbol := range []string{"<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "()", "<", ">"} {
		if strings.HasPrefix(rest, symbol) {
			return len(word) + len(symbol)
		}
	}
	return 0
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

// closing returns the index of the bracket that closes the one at i, the string's
// length where none does. An angle closes only what an angle opened: others are
// comparisons, arrows and operators.
func closing(s string, i int) int {
	var open []byte
	for ; i < len(s); i++ {
		if n := operatorAt(s, i); n > 0 {
			i += n - 1
			continue
		}
		switch c := s[i]; c {
		case '<', '(', '{', '[':
			open = append(open, c)
		case '>', ')', '}', ']':
			if c == '>' && (s[i-1] == '-' || open[len(open)-1] != '<') {
				continue
			}
			if open = open[:len(open)-1]; len(open) == 0 {
				return i
			}
		}
	}
	return len(s)
}

// arguments shortens what is between angles.
func arguments(s string) string {
	var kept []string
	length := 0
	for rest := s; ; {
		arg, next, more := nextArgument(rest)
		if length += len(arg); length > maxKept || strings.ContainsAny(arg, "<({[") {
			kept = append(kept, "...")
			break
		}
		kept = append(kept, arg)
		if rest = next; !more {
			break
		}
	}
	return "<" + strings.Join(kept, ", ") + ">"
}

// nextArgument cuts the first argument off a list.
func nextArgument(s string) (arg, rest string, more bool) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '<', '(', '{', '[':
			i = closing(s, i)
		case ',':
			return strings.TrimSpace(s[:i]), strings.TrimSpace(s[i+1:]), true
		}
	}
	return strings.TrimSpace(s), "", false
}

// closure shortens {lambda(int, float)#1} to {lambda#1}; others stay as they are.
func closure(s string) string {
	i := strings.IndexByte(s, '(')
	if i < 0 {
		return s
	}
	end := closing(s, i)
	if end >= len(s) {
		return s
	}
	return s[:i] + s[end+1:]
}
