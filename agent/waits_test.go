package agent_test

import "testing"

// TestWaitsAllow: a thread of the target, which launches graphs, may hold others for longer than the agent's own, for
// whose windows a subscription that is kept is the way out.
func TestWaitsAllow(t *testing.T) {
	const want = `agent, waits of 1000 us, 0 ms held: 1
agent, waits of 2000 us, 0 ms held: 0
agent, waits of 1000 us, 4 ms held: 0
target, waits of 2000 us, 0 ms held: 1
target, waits of 9000 us, 0 ms held: 1
target, waits of 10000 us, 0 ms held: 0
agent, waits of 10000 us, 0 ms held: 1
`
	if got := unit(t, "waits", "-O1", "-Wl,--wrap=task_read"); got != want {
		t.Errorf("waits:\n%swant:\n%s", got, want)
	}
}
