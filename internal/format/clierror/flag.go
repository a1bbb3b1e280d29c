package clierror

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// flagKinds says what the value of a flag must be, by the flag's type.
var flagKinds = map[string]string{
	"int": "a whole number", "intSlice": "a whole number", "float64": "a number", "bool": "true or false",
	"duration": "a duration, such as 500ms, 10s or 1m30s",
}

// OfFlag returns the error of a command line that could not be parsed; help is the command that explains its flags.
func OfFlag(help string, err error) *Fault {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		if kind := flagKinds[bad.GetFlag().Value.Type()]; kind != "" {
			err = fmt.Errorf("--%s: %.64q is not %s", bad.GetFlag().Name, bad.GetValue(), kind)
		}
	}
	return New(Usage, "see "+help, err)
}
