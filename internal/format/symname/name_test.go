package symname_test

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/inferscope/inferscope/internal/format/symname"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

func TestDemangle(t *testing.T) {
	tests := []struct{ raw, short, full string }{
		{"memcpy", "memcpy", "memcpy"},
		{"memcpy@@GLIBC_2.14", "memcpy", "memcpy"},
		{"mkl_lapack_slasr3._omp_fn.12", "mkl_lapack_slasr3._omp_fn.12", "mkl_lapack_slasr3._omp_fn.12"},
		{"frobnicate.part.3.constprop.0.cold", "frobnicate", "frobnicate.part.3.constprop.0.cold"},
		{
			"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
			"at::native::vectorized_elementwise_kernel<4, ...>",
			"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, " +
				"3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
		},
		{
			"_ZNSt6vectorIN3c106IValueESaIS1_EE12emplace_backIJNS0_8ArrayRefIlEEEEERS1_DpOT_.isra.0",
			"std::vector<c10::IValue, ...>::emplace_back<...>",
			"c10::IValue& std::vector<c10::IValue, std::allocator<c10::IValue> >::emplace_back<c10::ArrayRef<long> " +
				">(c10::ArrayRef<long>&&) [clone .isra.0]",
		},
		{
			"_ZZZN2at6native23index_select_sparse_cpuERKNS_6TensorElS3_ENKUlvE0_clEvENKUlllE0_clEll.isra.0.cold",
			"at::native::index_select_sparse_cpu::{lambda#2}::operator()::{lambda#2}::operator()",
			"at::native::index_select_sparse_cpu(at::Tensor const&, long, at::Tensor " +
				"const&)::{lambda()#2}::operator()() const::{lambda(long, long)#2}::operator()(long, long) const " +
				"[clone .isra.0] [clone .cold]",
		},
		{
			"_ZN2at12_GLOBAL__N_131structured_special_i0e_meta_out16maybe_get_outputEl",
			"at::structured_special_i0e_meta_out::maybe_get_output",
			"at::(anonymous namespace)::structured_special_i0e_meta_out::maybe_get_output(long)",
		},
		{"_ZlsIiEvRSoT_", "operator<< <int>", "void operator<< <int>(std::ostream&, int)"},
		{"_ZNK3FooptEv", "Foo::operator->", "Foo::operator->() const"},
		{"_ZN3FooltERKS_", "Foo::operator<", "Foo::operator<(Foo const&)"},
		{
			"_ZNKSt8functionIFviEEclEi",
			"std::function<...>::operator()",
			"std::function<void (int)>::operator()(int) const",
		},
		{"_ZThn16_N3Foo3barEv", "non-virtual thunk to Foo::bar", "non-virtual thunk to Foo::bar()"},
		// A template argument that holds a comparison in parentheses.
		{"_ZN1AILb1EE1fILi3EEEvv", "A<true>::f<3>", "void A<true>::f<3>()"},
		{"_ZN4core3ptr13drop_in_place17h0123456789abcdefE", "core::ptr::drop_in_place", "core::ptr::drop_in_place"},
		{"_RNvMNtCs4fqI2P2rA04_4test3fooNtB2_3Bar3baz", "<test::foo::Bar>::baz", "<test::foo::Bar>::baz"},
		// Too many copies to be demangled: as far as it can be read.
		{
			"_ZN2at12_GLOBAL__N_16native3fooIiEEvT_" + strings.Repeat("S1_", 25),
			"at::native::foo<...>...",
			"at::native::foo<...>...",
		},
		{"_ZNSt3fooE" + strings.Repeat("T_S1_", 25), "std::foo...", "std::foo..."},
		{"_ZNot mangled", "_ZNot mangled", "_ZNot mangled"},
		// A terminal must not take a name for a command.
		{"evil\x1b[2J\n\u202e", "evil?[2J??", "evil?[2J??"},
		// What names no function.
		{"$x", "", ""},
		{".L123", "", ""},
		{"", "", ""},
	}
	for _, tt := range tests {
		if got := symname.Demangle(tt.raw, false); got != tt.short {
			t.Errorf("%s is short\n  %q, want\n  %q", tt.raw, got, tt.short)
		}
		if got := symname.Demangle(tt.raw, true); got != tt.full {
			t.Errorf("%s is whole\n  %q, want\n  %q", tt.raw, got, tt.full)
		}
	}
}

// Names longer than any are bounded, and so is what they make.
func TestDemangleLong(t *testing.T) {
	for what, raw := range map[string]string{
		"no name":  strings.Repeat("_Z", 1<<20),
		"pointers": "_Z1f" + strings.Repeat("P", 4000) + "v",
		"plain":    strings.Repeat("x", 1<<20),
		"long":     "_ZN1aI" + strings.Repeat("1b", 1<<16),
		"nested":   "_Z1f" + strings.Repeat("1AI", 1300) + "v" + strings.Repeat("E", 1300),
	} {
		bounded(t, what, raw)
	}
}

// Names made to cost more with every letter take no more memory than is bounded; with
// it goes the time. They come by how much they could take, so that one which is not
// stopped fails here before it takes all there is.
func TestDemangleGrowing(t *testing.T) {
	for _, copies := range []int{6, 12, 24, 28, 32, 36, 60, 120, 600} {
		for _, each := range []int{1, 2, 3} {
			for kind, raw := range growing(copies/each, each) {
				bounded(t, fmt.Sprintf("%s, %d of %d", kind, copies/each, each), raw)
				if got := symname.Demangle(raw, true); copies == 6 && got == raw {
					t.Errorf("%s: %s is no name, so it tests nothing", kind, raw)
				}
			}
		}
	}
}

// bounded demangles a name, and stops the test where that takes too much.
func bounded(t *testing.T, what, raw string) {
	t.Helper()
	for _, full := range []bool{false, true} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := symname.Demangle(raw, full)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 24<<20 {
			t.Fatalf("%s: a name of %d bytes took %d bytes of memory", what, len(raw), used)
		}
		if len(got) > 4<<10+3 || got == "" {
			t.Errorf("%s: a name of %d bytes makes %d", what, len(raw), len(got))
		}
	}
}

// growing makes names of types each of which holds several of the one before it.
func growing(levels, each int) map[string]string {
	out := map[string]string{}
	for kind, head := range map[string]string{
		"function types":               "_Z1f1APFvS_E",
		"of a template parameter":      "_Z1fIiEvPFvT_E",
		"of a pack":                    "_Z1fIJEEvPFvDpT_E",
		"of a full pack":               "_Z1fIJiiEEvPFvDpT_E",
		"of a lambda's parameter":      "_ZZ1fvENKUlT_E_clIiEEDaPFvT_E",
		"of a type in a template name": "_ZN1aIiE1bIfEEvPFvT_E",
	} {
		var b strings.Builder
		b.WriteString(head)
		for level := range levels {
			b.WriteString("PFv" + strings.Repeat(sequence(2*level+2), each) + "E")
		}
		out[kind] = b.String()
	}
	var rust strings.Builder
	rust.WriteString("_RINvC1a1bTuuE")
	at := len("INvC1a1b")
	for range levels {
		next := rust.Len() - len("_R")
		rust.WriteString("T" + strings.Repeat("B"+base62(at), each) + "E")
		at = next
	}
	out["in Rust"] = rust.String() + "E"
	return out
}

// sequence is the n-th substitution of a C++ name.
func sequence(n int) string {
	if n == 0 {
		return "S_"
	}
	return "S" + strings.ToUpper(strconv.FormatInt(int64(n-1), 36)) + "_"
}

// base62 is a number in a Rust name.
func base62(n int) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	if n == 0 {
		return "_"
	}
	out := ""
	for n--; ; n /= 62 {
		if out = digits[n%62:n%62+1] + out; n < 62 {
			return out + "_"
		}
	}
}

func FuzzDemangle(f *testing.F) {
	for _, s := range []string{
		"_ZlsIiEvRSoT_", "_ZN1AcvPFviEEv", "_RNvC1a1b", "f.cold", "a<b>(c){d}", "<a as b>::c", "operator<",
		"_ZN4core3ptr17h0123456789abcdefE",
	} {
		f.Add(s, true)
		f.Add(s, false)
	}
	for _, raw := range growing(10, 2) {
		f.Add(raw, true)
	}
	fuzzing.Run(f, func(t *testing.T, raw string, full bool) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := symname.Demangle(raw, full)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
			t.Fatalf("%d bytes of memory for a name of %d", used, len(raw))
		}
		if len(got) > 4<<10+3 {
			t.Fatalf("%d bytes", len(got))
		}
		if !utf8.ValidString(got) || strings.ContainsAny(got, "\x00\n\x1b") {
			t.Fatalf("%q", got)
		}
	})
}
