package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// The published schema is made from the types of the model and the comments that stand beside their
// fields, so that neither can be changed without the other.
const (
	schemaFile = "../../docs/report.schema.json"
	module     = "github.com/inferscope/inferscope/internal/"
)

// jsonObject is a JSON object of the schema; encoding/json writes its keys in order.
type jsonObject = map[string]any

// schemaWriter turns Go types into JSON Schema (draft 2020-12).
type schemaWriter struct {
	t    *testing.T
	defs jsonObject
	docs map[string]map[string]string // by package path: what is said of "Type" and of "Type.Field"
}

func reportSchema(t *testing.T) jsonObject {
	w := &schemaWriter{t: t, defs: jsonObject{}, docs: map[string]map[string]string{}}
	root := w.structure(reflect.TypeFor[Model]())
	props := root["properties"].(jsonObject)
	props["kind"].(jsonObject)["const"], props["schema"].(jsonObject)["const"] = Kind, schemaVersion
	props["state"].(jsonObject)["enum"] = []callState{stateCalls, stateNoCalls, stateNoLibrary, stateUnprobed}
	verdict := w.defs["diagnose.Diagnosis"].(jsonObject)["properties"].(jsonObject)["verdict"].(jsonObject)
	verdict["enum"] = []diagnose.Verdict{
		diagnose.Healthy, diagnose.CPUBound, diagnose.GPUBound, diagnose.CopyBound, diagnose.CommunicationBound,
		diagnose.Hung, diagnose.Stopped, diagnose.Balanced, diagnose.Idle, diagnose.CPUOnly, diagnose.NotEnough,
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["$id"] = fmt.Sprintf("urn:inferscope:report:%d", schemaVersion)
	root["title"] = fmt.Sprintf("InferScope report, schema %d", schemaVersion)
	root["$defs"] = w.defs
	return root
}

// of returns the schema of a type; structures go among the definitions.
func (w *schemaWriter) of(t reflect.Type) jsonObject {
	switch t.Kind() {
	case reflect.Pointer:
		return w.of(t.Elem())
	case reflect.Struct:
		// The names of the schema are public, whether those of Go are or not.
		name := path.Base(t.PkgPath()) + "." + capitalized(t.Name())
		if _, ok := w.defs[name]; !ok {
			w.defs[name] = jsonObject{} // a type can hold itself
			w.defs[name] = w.structure(t)
		}
		return jsonObject{"$ref": "#/$defs/" + name}
	case reflect.Slice:
		return jsonObject{"type": "array", "items": w.of(t.Elem())}
	case reflect.Array:
		return jsonObject{"type": "array", "items": w.of(t.Elem()), "minItems": t.Len(), "maxItems": t.Len()}
	case reflect.Map:
		return jsonObject{"type": "object", "additionalProperties": w.of(t.Elem())}
	case reflect.String:
		return jsonObject{"type": "string"}
	case reflect.Bool:
		return jsonObject{"type": "boolean"}
	case reflect.Float64, reflect.Float32:
		return jsonObject{"type": "number"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return jsonObject{"type": "integer", "minimum": 0}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return jsonObject{"type": "integer"}
	}
	w.t.Fatalf("the model holds a %s, which this schema cannot say", t)
	return nil
}

func (w *schemaWriter) structure(t reflect.Type) jsonObject {
	props, required := jsonObject{}, []string{}
	for f := range t.Fields() {
		if !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch name {
		case "-":
			continue
		case "":
			w.t.Fatalf("%s.%s has no name in JSON", t, f.Name)
		}
		s := w.of(f.Type)
		if f.Type.Kind() == reflect.Pointer && options == "" {
			s = jsonObject{"anyOf": []jsonObject{{"type": "null"}, s}}
		}
		if doc := w.doc(t, "."+f.Name); doc != "" {
			s["description"] = doc
		}
		props[name] = s
		if options == "" {
			required = append(required, name)
		}
	}
	s := jsonObject{"type": "object", "properties": props, "required": required}
	if doc := w.doc(t, ""); doc != "" {
		s["description"] = capitalized(doc)
	}
	return s
}

func capitalized(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// doc returns what the source says of a type, or of a field of it (".Name").
func (w *schemaWriter) doc(t reflect.Type, field string) string {
	if w.docs[t.PkgPath()] == nil {
		w.docs[t.PkgPath()] = w.read(strings.TrimPrefix(t.PkgPath(), module))
	}
	return w.docs[t.PkgPath()][t.Name()+field]
}

// read collects the comments of a package's types and fields.
func (w *schemaWriter) read(pkg string) map[string]string {
	out := map[string]string{}
	files, err := fs.Glob(os.DirFS("../"+pkg), "*.go")
	if err != nil || len(files) == 0 {
		w.t.Fatalf("no source of %s: %v", pkg, err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), "../"+pkg+"/"+name, nil, parser.ParseComments)
		must.NoError(w.t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.TYPE {
				typeComments(d, out)
			}
			return true
		})
	}
	return out
}

func typeComments(d *ast.GenDecl, out map[string]string) {
	for _, s := range d.Specs {
		spec := s.(*ast.TypeSpec)
		out[spec.Name.Name] = comment(d.Doc, spec.Doc, spec.Comment)
		st, ok := spec.Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range st.Fields.List {
			for _, n := range f.Names {
				out[spec.Name.Name+"."+n.Name] = comment(f.Doc, f.Comment)
			}
		}
	}
}

func comment(groups ...*ast.CommentGroup) string {
	var parts []string
	for _, g := range groups {
		if s := strings.TrimSpace(strings.ReplaceAll(g.Text(), "\n", " ")); s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, "; ")
}

// TestSchemaIsPublished holds that docs/report.schema.json is what the types are.
func TestSchemaIsPublished(t *testing.T) {
	var got bytes.Buffer
	e := json.NewEncoder(&got)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	must.NoError(t, e.Encode(reportSchema(t)))
	if *update {
		must.NoError(t, os.WriteFile(schemaFile, got.Bytes(), 0o644))
	}
	want, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatalf("%v (go test ./internal/report -update writes it)", err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
		t.Errorf(
			"%s is not what the types are (go test ./internal/report -run Schema -update writes it):\n%s",
			schemaFile,
			diff,
		)
	}
}

// TestReportsFollowTheSchema holds every report that the tests know against the published file.
func TestReportsFollowTheSchema(t *testing.T) {
	file, err := os.ReadFile(schemaFile)
	must.NoError(t, err)
	v := validator{root: decoded(t, file).(jsonObject)}
	for _, sc := range scenarios() {
		m := New(sc.rec)
		v.check(sc.name, v.root, decoded(t, asJSON(t, m)))
	}
	v.check("announced", v.root, decoded(t, asJSON(t, announcedModel())))
	for _, problem := range v.problems {
		t.Error(problem)
	}
}

func asJSON(t *testing.T, m *Model) []byte {
	t.Helper()
	var out bytes.Buffer
	must.NoError(t, JSON(&out, m))
	return out.Bytes()
}

// decoded keeps numbers as they are written: 2^53 is not enough for ns since 1970.
func decoded(t *testing.T, text []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	must.NoError(t, d.Decode(&v))
	return v
}

// TestTheValidatorFindsFaults keeps the judge honest.
func TestTheValidatorFindsFaults(t *testing.T) {
	file, err := os.ReadFile(schemaFile)
	must.NoError(t, err)
	good := string(asJSON(t, announcedModel()))
	for _, change := range [][2]string{
		{`"verdict": "cpu-bound"`, `"verdict": "slow"`},
		{`"schema": 1,`, `"schema": 2,`},
		{`"headline": `, `"headlines": `},
		{`"per_second": 11.4`, `"per_second": "11.4"`},
		{`"pid": 1234,`, `"pid": -1,`},
		{`"children": 0`, `"children": 0.5`},
		{`"doubts": []`, `"doubts": {}`},
		{`"doubts": []`, `"doubts": null`},
		{`"losses_of_nobody": 0`, ``},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if change[1] == "" {
			bad = strings.Replace(good, "{", `{"nobody_knows_this": 1,`, 1)
		}
		v := validator{root: decoded(t, file).(jsonObject)}
		v.check("report", v.root, decoded(t, []byte(bad)))
		if len(v.problems) == 0 || bad == good {
			t.Errorf("%q for %q was not found", change[1], change[0])
		}
	}
}
