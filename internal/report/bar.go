package report

import "strings"

// barWidth is the length of a bar, in characters: each stands for 5% of the window.
const barWidth = 20

// pen is what bars are drawn with.
type pen struct{ running, polling, runnable, blocked, absent string }

func newPen(ascii bool) pen {
	if ascii {
		return pen{"#", "=", "!", ".", " "}
	}
	return pen{"█", "▓", "▒", "░", " "}
}

// legend reports what the characters mean.
func (p pen) legend(polling, runnable, absent bool) string {
	s := p.running + " running"
	if polling {
		s += ", " + p.polling + " running, but in calls that wait for the GPU"
	}
	if runnable {
		s += ", " + p.runnable + " ready, but without a CPU"
	}
	s += ", " + p.blocked + " blocked"
	if absent {
		s += ", blank: not there, or not recorded"
	}
	return s + "."
}

// draw makes a bar out of parts that add up to the whole. What is there at all is
// seen, unless there are more parts than characters.
func (p pen) draw(running, polling, runnable, blocked, absent uint64) string {
	parts := []uint64{running, polling, runnable, blocked, absent}
	marks := []string{p.running, p.polling, p.runnable, p.blocked, p.absent}
	var b strings.Builder
	for i, n := range cells(parts) {
		b.WriteString(strings.Repeat(marks[i], n))
	}
	return b.String()
}

// cells deals barWidth characters out: rounded down first, one at least from 1% on,
// and what is left over to the largest remainders.
func cells(parts []uint64) []int {
	total := uint64(0)
	for _, n := range parts {
		total += n
	}
	out, left := make([]int, len(parts)), barWidth
	if total == 0 {
		return out
	}
	exact := make([]float64, len(parts))
	for i, n := range parts {
		exact[i] = float64(n) / float64(total) * barWidth
		out[i] = int(exact[i])
		if out[i] == 0 && float64(n) >= 0.01*float64(total) {
			out[i] = 1
		}
		left -= out[i]
	}
	for ; left != 0; left -= sign(left) {
		best := -1
		for i := range out {
			if sign(left) < 0 && out[i] <= 1 || parts[i] == 0 {
				continue
			}
			if best < 0 ||
				float64(sign(left))*(exact[i]-float64(out[i])) > float64(sign(left))*(exact[best]-float64(out[best])) {
				best = i
			}
		}
		if best < 0 {
			return out
		}
		out[best] += sign(left)
	}
	return out
}

func sign(n int) int {
	if n < 0 {
		return -1
	}
	return 1
}
