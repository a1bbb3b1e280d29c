package format_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/format"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"":                              "",
		"void gemm<float>(float*, ü)":   "void gemm<float>(float*, ü)",
		"a\x1b[2Jb\nc\rd\te\x00f\x7fg":  "a?[2Jb?c?d?e?f?g",
		"user\u202Enimda\u2066x\u2069":  "user?nimda?x?",
		"a\u200bb\u2028c\ufeffd\u009bm": "a?b?c?d?m",
		"bad\xff":                       "bad?",
	} {
		if got := format.Printable(in); got != want && !(in == "bad\xff" && got == "bad\uFFFD") {
			t.Errorf("%q became %q instead of %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"=cmd|' /C calc'!A0": "'=cmd|' /C calc'!A0", "+1+1": "'+1+1", "-2+3": "'-2+3", "@SUM(1)": "'@SUM(1)",
		"\t=1": "'?=1", "\r=1": "'?=1", "gemm": "gemm", "": "", "a=b": "a=b", "\u202Egemm": "?gemm",
	} {
		if got := format.Cell(in); got != want {
			t.Errorf("the cell of %q is %q instead of %q", in, got, want)
		}
	}
}
