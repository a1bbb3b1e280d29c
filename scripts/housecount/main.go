// Command housecount measures how the code is written: hand-written lines, packages, statements a line, lines over 120
// columns, exported names that no other package uses, and words in documents. Run it from the root: go run
// ./scripts/housecount
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"sort"
	"strings"
	"unicode/utf8"
)

const maxColumns = 120

// counts is what is measured of one language.
type counts struct{ files, lines, long int }

// tree is what is read of the Go code.
type tree struct {
	module     string
	packages   map[string]bool
	statements int
	code       int             // lines of Go that are neither blank nor comments alone
	exported   map[string]bool // "import/path.Name", not of commands and tests
	used       map[string]bool // the same, by another package
	given      map[string]bool // the same, that others get from an exported function or as an embedded field
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "housecount:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "git", "ls-files").Output()
	if err != nil {
		return fmt.Errorf("list the files of the repository (run it in a checkout): %w", err)
	}
	module, err := exec.CommandContext(ctx, "go", "list", "-m").Output()
	if err != nil {
		return fmt.Errorf("name the module: %w", err)
	}
	t := &tree{
		module:   strings.TrimSpace(string(module)),
		packages: map[string]bool{},
		exported: map[string]bool{},
		used:     map[string]bool{},
		given:    map[string]bool{},
	}
	by := map[string]*counts{}
	words := 0
	for _, file := range strings.Fields(string(out)) {
		text, err := os.ReadFile(file)
		if err != nil {
			if os.IsNotExist(err) {
				continue
			}
			return err
		}
		if path.Ext(file) == ".md" &&
			(strings.HasPrefix(file, "docs/") && !strings.Contains(
				file, "/examples/",
			) || !strings.Contains(file, "/")) {
			words += len(bytes.Fields(text))
		}
		language := languageOf(file)
		if language == "" || generated(text) {
			continue
		}
		if by[language] == nil {
			by[language] = &counts{}
		}
		by[language].add(text)
		if language == "Go" {
			if err := t.read(file, text); err != nil {
				return err
			}
		}
	}
	t.print(by, words)
	return nil
}

// languageOf returns the language of a hand-written file; "" for data and for libbpf's headers in bpf/headers.
func languageOf(file string) string {
	if strings.Contains(file, "node_modules/") || strings.Contains(file, "package-lock") ||
		strings.HasPrefix(file, "bpf/headers/bpf/") {
		return ""
	}
	switch path.Ext(file) {
	case ".go":
		return "Go"
	case ".c", ".h", ".cu":
		return "C"
	case ".py":
		return "Python"
	case ".sh":
		return "shell"
	case ".js", ".css":
		if strings.HasPrefix(file, "web/") || strings.HasPrefix(file, "test/browser/") {
			return "web"
		}
	}
	return ""
}

func generated(text []byte) bool {
	head := text[:min(len(text), 400)]
	return bytes.Contains(head, []byte("Code generated")) ||
		bytes.Contains(head, []byte("vmlinux")) && len(text) > 200_000
}

func (c *counts) add(text []byte) {
	c.files++
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		c.lines++
		if utf8.RuneCountInString(strings.ReplaceAll(s.Text(), "\t", "    ")) > maxColumns {
			c.long++
		}
	}
}

func (t *tree) read(file string, text []byte) error {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, text, parser.ParseComments)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	dir := path.Join(t.module, path.Dir(file))
	t.packages[dir] = true
	t.code += codeLines(fset, f, text)
	names := map[string]string{}
	for _, i := range f.Imports {
		p := strings.Trim(i.Path.Value, `"`)
		name := path.Base(p)
		if i.Name != nil {
			name = i.Name.Name
		}
		names[name] = p
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt, *ast.EmptyStmt:
		case ast.Stmt:
			t.statements++
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && names[x.Name] != "" {
				t.used[names[x.Name]+"."+n.Sel.Name] = true
			}
		}
		return true
	})
	if f.Name.Name != "main" && strings.HasPrefix(file, "internal/") && !strings.HasSuffix(file, "_test.go") &&
		!strings.HasPrefix(file, "internal/testkit/") {
		for _, d := range f.Decls {
			t.export(dir, d)
		}
	}
	return nil
}

// codeLines counts the lines that hold code.
func codeLines(fset *token.FileSet, f *ast.File, text []byte) int {
	comment := map[int]bool{}
	lines := bytes.Split(text, []byte("\n"))
	for _, g := range f.Comments {
		for _, c := range g.List {
			from, to := fset.Position(c.Pos()), fset.Position(c.End())
			for l := from.Line; l <= to.Line; l++ {
				if l > from.Line || len(bytes.TrimSpace(lines[l-1][:from.Column-1])) == 0 {
					comment[l] = true
				}
			}
		}
	}
	n := 0
	for i, l := range lines {
		if len(bytes.TrimSpace(l)) > 0 && !comment[i+1] {
			n++
		}
	}
	return n
}

func (t *tree) export(dir string, d ast.Decl) {
	note := func(id *ast.Ident) {
		if id.IsExported() {
			t.exported[dir+"."+id.Name] = true
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			note(d.Name)
		}
		if d.Name.IsExported() && d.Type.Results != nil {
			for _, r := range d.Type.Results.List {
				t.give(dir, r.Type)
			}
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				note(s.Name)
				if st, ok := s.Type.(*ast.StructType); ok && s.Name.IsExported() {
					for _, f := range st.Fields.List {
						if len(f.Names) == 0 {
							t.give(dir, f.Type)
						}
					}
				}
			case *ast.ValueSpec:
				for _, id := range s.Names {
					note(id)
				}
			}
		}
	}
}

// give notes the type of a result or an embedded field: others hold its values, and a linter wants it exported,
// although nobody else may write its name.
func (t *tree) give(dir string, x ast.Expr) {
	switch x := x.(type) {
	case *ast.Ident:
		t.given[dir+"."+x.Name] = true
	case *ast.StarExpr:
		t.give(dir, x.X)
	case *ast.ArrayType:
		t.give(dir, x.Elt)
	}
}

func (t *tree) print(by map[string]*counts, words int) {
	var languages []string
	total := counts{}
	for l, c := range by {
		languages = append(languages, l)
		total.files, total.lines, total.long = total.files+c.files, total.lines+c.lines, total.long+c.long
	}
	sort.Strings(languages)
	for _, l := range languages {
		c := by[l]
		fmt.Printf("%-22s %7d lines in %4d files, %5d (%.2f%%) over %d columns\n",
			l, c.lines, c.files, c.long, percent(c.long, c.lines), maxColumns)
	}
	fmt.Printf("%-22s %7d lines in %4d files, %5d (%.2f%%) over %d columns\n",
		"hand-written", total.lines, total.files, total.long, percent(total.long, total.lines), maxColumns)
	fmt.Printf("%-22s %7d, of which in internal/ %d\n", "Go packages", len(t.packages), t.under("internal/"))
	fmt.Printf("%-22s %7.2f statements a line of code (%d in %d)\n",
		"density", float64(t.statements)/float64(max(1, t.code)), t.statements, t.code)
	unused := 0
	var list []string
	for name := range t.exported {
		if !t.used[name] && !t.given[name] {
			unused++
			list = append(list, strings.TrimPrefix(name, t.module+"/"))
		}
	}
	fmt.Printf("%-22s %7d of %d are used by no other package, by name or as a result\n",
		"exported names", unused, len(t.exported))
	fmt.Printf("%-22s %7d words in docs/ (without examples) and at the root\n", "documents", words)
	if len(os.Args) > 1 && os.Args[1] == "-unused" {
		sort.Strings(list)
		fmt.Println(strings.Join(list, "\n"))
	}
}

func (t *tree) under(prefix string) (n int) {
	for p := range t.packages {
		if strings.HasPrefix(strings.TrimPrefix(p, t.module+"/"), prefix) {
			n++
		}
	}
	return n
}

func percent(n, of int) float64 { return 100 * float64(n) / float64(max(1, of)) }
