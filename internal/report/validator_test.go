package report

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// validator holds a JSON value against the part of JSON Schema that the published schema uses. It is
// stricter in one point: a property that the schema does not name is a fault here, so that no field
// goes undocumented.
type validator struct {
	root     jsonObject
	problems []string
}

func (v *validator) fault(at, format string, args ...any) {
	v.problems = append(v.problems, at+": "+fmt.Sprintf(format, args...))
}

func (v *validator) check(at string, schema jsonObject, value any) {
	if ref, ok := schema["$ref"].(string); ok {
		def, ok := v.root["$defs"].(jsonObject)[strings.TrimPrefix(ref, "#/$defs/")].(jsonObject)
		if !ok {
			v.fault(at, "no definition %s", ref)
			return
		}
		v.check(at, def, value)
		return
	}
	if any, ok := schema["anyOf"].([]any); ok {
		v.anyOf(at, any, value)
		return
	}
	if c, ok := schema["const"]; ok && c != value {
		v.fault(at, "%v, want %v", value, c)
	}
	if list, ok := schema["enum"].([]any); ok && !slices.Contains(list, value) {
		v.fault(at, "%v is none of %v", value, list)
	}
	v.typed(at, schema, value)
}

func (v *validator) anyOf(at string, list []any, value any) {
	for _, s := range list {
		try := validator{root: v.root}
		if try.check(at, s.(jsonObject), value); len(try.problems) == 0 {
			return
		}
	}
	v.fault(at, "%v fits none of the alternatives", value)
}

func (v *validator) typed(at string, schema jsonObject, value any) {
	switch schema["type"] {
	case "object":
		v.object(at, schema, value)
	case "array":
		v.array(at, schema, value)
	case "string":
		check[string](v, at, value)
	case "boolean":
		check[bool](v, at, value)
	case "null":
		if value != nil {
			v.fault(at, "%v, want null", value)
		}
	case "integer", "number":
		v.number(at, schema, value)
	default:
		v.fault(at, "the schema has no type that this knows: %v", schema)
	}
}

func check[T any](v *validator, at string, value any) T {
	got, ok := value.(T)
	if !ok {
		v.fault(at, "%T, want %T", value, got)
	}
	return got
}

func (v *validator) number(at string, schema jsonObject, value any) {
	n := check[json.Number](v, at, value)
	if schema["type"] == "integer" && strings.ContainsAny(n.String(), ".eE") {
		v.fault(at, "%s is no integer", n)
	}
	if _, ok := schema["minimum"]; ok && strings.HasPrefix(n.String(), "-") {
		v.fault(at, "%s is below 0", n)
	}
}

func (v *validator) array(at string, schema jsonObject, value any) {
	list := check[[]any](v, at, value)
	if n, ok := schema["minItems"].(json.Number); ok && n.String() != fmt.Sprint(len(list)) {
		v.fault(at, "%d items, want %s", len(list), n)
	}
	for i, item := range list {
		v.check(fmt.Sprintf("%s[%d]", at, i), schema["items"].(jsonObject), item)
	}
}

func (v *validator) object(at string, schema jsonObject, value any) {
	got := check[jsonObject](v, at, value)
	props, _ := schema["properties"].(jsonObject)
	others, _ := schema["additionalProperties"].(jsonObject)
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, ok := got[name.(string)]; !ok {
			v.fault(at, "no %s", name)
		}
	}
	for name, item := range got {
		switch s, ok := props[name].(jsonObject); {
		case ok:
			v.check(at+"."+name, s, item)
		case others != nil:
			v.check(at+"."+name, others, item)
		default:
			v.fault(at, "%s is not in the schema", name)
		}
	}
}
