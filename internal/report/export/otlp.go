package export

import (
	"bufio"

	"github.com/inferscope/inferscope/internal/recording/otlp"
)

// writeOTLP writes the requests alone: spans and metrics.
func writeOTLP(v *view, out *bufio.Writer) error { return otlp.WriteJSON(out, &v.rec.Meta) }
