package gpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// compile builds a C program with agent/abi.h.
func compile(t testing.TB, source string) string {
	t.Helper()
	cc := needs.Tool(t, "gcc")
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command(cc, "-std=gnu11", "-O2", "-Wall", "-Werror", "-pthread", "-I../../../agent", "-o", out, source)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

// TestABI compares every number of abi.go with what C makes of agent/abi.h.
func TestABI(t *testing.T) {
	rows := map[string]uint64{
		"AGENT_MAGIC": abiMagic, "AGENT_ABI": abiLevel, "AGENT_DATA": ringData, "AGENT_PATH": pathBytes,
		"AGENT_HOLDER": nameBytes, "sizeof(struct agent_slot)": slotBytes, "sizeof(struct agent_text)": slotBytes,
		"sizeof(struct agent_params)": paramsBytes, "sizeof(struct agent_hello)": helloBytes,
		"sizeof(((struct agent_text *)0)->text_a)": textALen, "sizeof(((struct agent_text *)0)->text_b)": textBLen,
		"sizeof(((struct agent_text *)0)->text_c)": textCLen, "sizeof(((struct agent_ring *)0)->build)": 20,

		"AGENT_NAME": kindName, "AGENT_TEXT": kindText, "AGENT_WINDOW": kindWindow, "AGENT_DEVICE": kindDevice,
		"AGENT_OPENED": kindOpened, "AGENT_STEPS": kindSteps, "STEPS": 8,
		"AGENT_HOLD": kindHold, "WINDOW_STARVED": windowStarved,
		"STEP_FINALIZE": 7, "DEVICE_PART": devicePart, "END_FINALIZED": endFinalized, "END_DISABLED": endDisabled,
		"END_REFUSED": endRefused, "END_KEPT": endKept, "WINDOW_CALLS": windowCalls, "WINDOW_OWN": windowOwn,
		"MODE_OFF": modeOff, "MODE_WINDOWS": modeWindows, "MODE_CONTINUOUS": modeContinuous, "MODE_QUIT": modeQuit,
		"STATE_STARTING": stateStarting, "STATE_IDLE": stateIdle, "STATE_OPENING": stateOpening,
		"STATE_OPEN": stateOpen, "STATE_CLOSING": stateClosing, "STATE_REFUSED": stateRefused, "STATE_GONE": stateGone,
		"STATE_KEPT": stateKept, "STATE_LEAVING": stateLeaving, "ERROR_NO_CUPTI": errorNoCUPTI,
		"ERROR_NO_SYMBOL": errorNoSymbol, "ERROR_TOO_OLD": errorTooOld, "ERROR_MEMORY": errorMemory,
		"ERROR_GRAPH_THREADS": errorGraphThreads, "ERROR_BUSY": errorBusy,
	}
	for of, fields := range map[string]map[string]uint64{
		"ring": {
			"magic": ringMagic, "abi": ringABI, "slots": ringSlots, "pid": ringPID, "build": ringBuild,
			"heartbeat": ringHeartbeat, "tail": ringTail, "on_ns": ringOn, "period_ns": ringPeriod,
			"deadline_ns": ringDeadline, "mode": ringMode, "wake": ringWake, "flush": ringFlush, "head": ringHead,
			"dropped": ringDropped, "began": ringBegan, "state": ringState, "error": ringError,
			"cupti_version": ringCUPTI, "windows": ringWindows, "graphs": ringGraphs, "flushed": ringFlushed,
			"opening": ringOpening, "leaving": ringLeaving, "finalizing": ringFinalizing, "path": ringPath,
			"lost": ringLost, "turns": ringTurns, "graph_threads": ringGraphThreads, "graph_thread": ringGraphThread,
			"holder": ringHolder, "gate": ringGate, "armed": ringArmed, "ask": ringAsk, "asked": ringAsked,
			"inside_count": ringInsideCount, "hold_ns": ringHoldNS, "hold_longest": ringHoldLongest, "holds": ringHolds,
			"gated": ringGated, "inside": ringInside, "seen": ringSeen, "gates_lost": ringGatesLost,
		},
		"slot": {
			"ts": slotTS, "dur": slotDur, "seq": slotSeq, "tid": slotTID, "func": slotFunc, "kind": slotKind,
			"flags": slotFlag, "ret": slotRet, "args": slotArgs,
		},
		"text": {"text_a": textA, "text_b": textB, "text_c": textC, "seq": slotSeq, "kind": slotKind},
		"params": {
			"magic": paramsMagic, "abi": paramsABI, "fd": paramsFD, "slots": paramsSlots, "mode": paramsMode,
			"on_ns": paramsOn, "period_ns": paramsPeriod, "deadline_ns": paramsDeadline, "heartbeat": paramsHeartbeat,
			"hello_at": paramsHelloAt, "cupti": paramsCUPTI,
		},
		"hello": {
			"magic": helloMagic, "abi": helloABI, "error": helloError, "ring_fd": helloRingFD, "tid": helloTID,
			"entered": helloEntered, "left": helloLeft,
		},
	} {
		for name, at := range fields {
			rows[fmt.Sprintf("offsetof(struct agent_%s, %s)", of, name)] = at
		}
	}
	var c strings.Builder
	c.WriteString("#include <stddef.h>\n#include \"abi.h\"\n")
	for expression, want := range rows {
		fmt.Fprintf(&c, "_Static_assert((%s) == %d, \"Go says %d\");\n", expression, want, want)
	}
	c.WriteString("int main(void) { return 0; }\n")
	source := filepath.Join(t.TempDir(), "abi.c")
	if err := os.WriteFile(source, []byte(c.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	compile(t, source)
}
