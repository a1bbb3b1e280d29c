package symname

import "strings"

// maxCopies bounds the substitutions (S1_) of a mangled C++ name that follow its first
// template parameter (T_). The demangler copies for each what it stands for, and that
// holds the copies before it: with 32, 174 bytes of a name made for it cost 588 ms and
// 156 MB, and each two more double it; a limit on the result does not help, because it
// is the parser that copies. Of the 882,000 functions of libtorch and Triton 0.19% have
// more than 24.
const maxCopies = 24

// explosive reports whether demangling a C++ name could take without bound. It takes
// what is inside of identifiers for what it looks like, which errs on the safe side.
func explosive(raw string) bool {
	first := -1
	for i := 0; i+1 < len(raw) && first < 0; i++ {
		if c := raw[i+1]; raw[i] == 'T' && (c == '_' || c == 'L' || isBase36(c)) {
			first = i
		}
	}
	if first < 0 {
		return false
	}
	copies := 0
	for i := first; i < len(raw); i++ {
		if raw[i] != 'S' {
			continue
		}
		end := i + 1
		for end < len(raw) && isBase36(raw[end]) {
			end++
		}
		if end < len(raw) && raw[end] == '_' {
			copies++
		}
	}
	return copies > maxCopies
}

func isBase36(c byte) bool { return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' }

// prefix returns what a C++ name begins with, as far as that can be read without
// demangling, and "..." for the rest; "" where nothing can be read:
// _ZN2at6native3fooIi... is at::native::foo<...>...
func prefix(raw string) string {
	rest, ok := strings.CutPrefix(raw, "_Z")
	if !ok {
		return ""
	}
	if nested, ok := strings.CutPrefix(rest, "N"); ok {
		rest = strings.TrimLeft(nested, "KVrRO")
	}
	var parts []string
	if after, ok := strings.CutPrefix(rest, "St"); ok {
		parts, rest = append(parts, "std"), after
	}
	for {
		name, after := identifier(rest)
		if name == "" {
			break
		}
		if !strings.HasPrefix(name, "_GLOBAL__N") {
			parts = append(parts, name)
		}
		rest = after
	}
	if len(parts) == 0 {
		return ""
	}
	end := "..."
	if strings.HasPrefix(rest, "I") {
		end = "<...>..."
	}
	return strings.Join(parts, "::") + end
}

// identifier cuts a name with its length in front off a mangled name; "" where there
// is none.
func identifier(s string) (name, rest string) {
	n, i := 0, 0
	for ; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
		if n = n*10 + int(s[i]-'0'); n > len(s) {
			return "", s
		}
	}
	if n == 0 || i+n > len(s) {
		return "", s
	}
	return s[i : i+n], s[i+n:]
}
