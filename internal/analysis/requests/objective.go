package requests

import (
	"fmt"
	"strings"
	"time"
)

// ParseObjective reads an objective: "ttft=200ms,tpot=30ms,latency=5s", of which each can be left out.
func ParseObjective(text string) (*Objective, error) {
	var o Objective
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		d, err := time.ParseDuration(strings.TrimSpace(value))
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("%q is no objective: write it as ttft=200ms,tpot=30ms,latency=5s", part)
		}
		switch strings.TrimSpace(name) {
		case "ttft":
			o.TTFT = uint64(d)
		case "tpot":
			o.TPOT = uint64(d)
		case "latency", "e2e":
			o.Latency = uint64(d)
		default:
			return nil, fmt.Errorf("%q is not known: an objective is of ttft, tpot or latency", name)
		}
	}
	return &o, nil
}
