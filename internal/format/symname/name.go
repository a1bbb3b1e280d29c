// Package symname turns the names of symbols into names for people: C++ and Rust names demangled, shortened, printable
// and bounded. It takes any string: targets choose their names.
package symname

import (
	"cmp"
	"strings"
	"unicode"

	"github.com/ianlancetaylor/demangle"
)

const (
	// maxMangled bounds what is demangled. The time goes with the square of the
	// length: 56 ms for the worst of 4 KiB that was tried, 4,080 nested pointers. Of the
	// 825,000 functions of libtorch_cpu, libtorch_cuda and Triton 9 names are longer.
	maxMangled = 4 << 10
	// maxPlain is the power of two that bounds a demangled name; of those that are
	// built to grow with each letter, too.
	maxPlain = 14
	// maxShown bounds any name.
	maxShown = 4 << 10
)

// Better reports whether of two names of one address people rather want a.
func Better(a, b string) bool {
	if !names(a) || !names(b) {
		return names(a)
	}
	underscores := func(s string) int { return len(s) - len(strings.TrimLeft(s, "_")) }
	return cmp.Or(
		cmp.Compare(underscores(a), underscores(b)),
		cmp.Compare(len(a), len(b)),
		cmp.Compare(a, b),
	) < 0
}

// names reports whether a symbol names a function: labels and arm64's mapping symbols
// ($x, $d) do not.
func names(s string) bool {
	return s != "" && s[0] != '$' && !strings.HasPrefix(s, ".L")
}

// Demangle makes a name for people out of a symbol: C++ and Rust names shortened, or
// whole where full; "" where the symbol names no function. It takes any string, and
// what it returns is printable and bounded.
func Demangle(raw string, full bool) string {
	if !names(raw) {
		return ""
	}
	raw, _, _ = strings.Cut(raw, "@") // memcpy@@GLIBC_2.14
	if !full {
		raw = withoutClones(raw)
	}
	name := printable(raw)
	if plain, ok := demangled(raw, full); ok {
		name = printable(plain)
		if !full {
			name = shorten(name, 0)
		}
	}
	return clip(name)
}

// Shorten makes a name for people out of one that is demangled already, as CUPTI's are:
// "void f<4, ...>(...)" becomes f<4, ...>. It takes any string, and what it returns is printable and bounded.
func Shorten(plain string) string {
	if strings.HasPrefix(plain, "_Z") {
		return Demangle(plain, false)
	}
	plain = printable(clip(plain))
	return clip(shorten(strings.TrimPrefix(plain, "void "), 0))
}

// Clean makes any text printable and bounded.
func Clean(s string) string { return clip(printable(s)) }

// clip bounds a name, and marks where it was cut.
func clip(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "..."
}

// printable replaces what a terminal could take for a command.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) && r != unicode.ReplacementChar {
			return r
		}
		return '?'
	}, s)
}

// demangled undoes C++ and Rust mangling. Short names have no parameters, because
// they say little to people that the function's name does not.
func demangled(raw string, full bool) (plain string, ok bool) {
	if !strings.HasPrefix(raw, "_") {
		return "", false
	}
	if len(raw) > maxMangled || explosive(raw) {
		plain = prefix(raw)
		return plain, plain != ""
	}
	// A target chose the name; a fault in the library must not end the daemon.
	defer func() {
		if recover() != nil {
			plain, ok = "", false
		}
	}()
	options := []demangle.Option{demangle.MaxLength(maxPlain)}
	if !full {
		options = append(options, demangle.NoParams, demangle.NoEnclosingParams)
	}
	plain, err := demangle.ToString(raw, options...)
	return plain, err == nil && plain != ""
}

// withoutClones cuts off what compilers append to the parts and copies of a function:
// foo.cold, foo.isra.0, foo.part.3.constprop.0, foo.lto_priv.7, foo.llvm.123.
func withoutClones(s string) string {
	for {
		i := strings.LastIndexByte(s, '.')
		if i <= 0 {
			return s
		}
		rest := s[:i]
		if isNumber(s[i+1:]) {
			j := strings.LastIndexByte(rest, '.')
			if j <= 0 || !isClone(rest[j+1:]) {
				return s
			}
			rest = rest[:j]
		} else if !isClone(s[i+1:]) {
			return s
		}
		s = rest
	}
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

func isClone(s string) bool {
	switch s {
	case "cold", "hot", "isra", "part", "constprop", "lto_priv", "localalias", "llvm", "warm":
		return true
	}
	return false
}
