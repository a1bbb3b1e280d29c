package gpu

// The Go side of agent/abi.h. TestABI compiles a C program with that header and compares
// every number here with it.
const (
	abiMagic = 0x41534e49 // AGENT_MAGIC
	abiLevel = 4          // AGENT_ABI

	ringData  = 4096 // AGENT_DATA: offset of the first slot
	slotBytes = 64   // sizeof(struct agent_slot)
	pathBytes = 240  // AGENT_PATH
	nameBytes = 64   // AGENT_HOLDER
)

// Offsets in struct agent_ring, bytes.
const (
	ringMagic        = 0
	ringABI          = 4
	ringSlots        = 8
	ringPID          = 12
	ringBuild        = 16
	ringHeartbeat    = 64
	ringTail         = 72
	ringOn           = 80
	ringPeriod       = 88
	ringDeadline     = 96
	ringMode         = 104
	ringWake         = 108
	ringFlush        = 112
	ringHead         = 120
	ringDropped      = 128
	ringBegan        = 136
	ringState        = 144
	ringError        = 148
	ringCUPTI        = 152
	ringWindows      = 156
	ringGraphs       = 160
	ringFlushed      = 164
	ringOpening      = 168
	ringLeaving      = 176
	ringFinalizing   = 184
	ringPath         = 192
	ringLost         = 432
	ringTurns        = 440
	ringGraphThreads = 444
	ringGraphThread  = 448
	ringHolder       = 452
	ringGate         = 516
	ringArmed        = 520
	ringAsk          = 524
	ringAsked        = 528
	ringInsideCount  = 532
	ringHoldNS       = 536
	ringHoldLongest  = 544
	ringHolds        = 552
	ringGated        = 572
	ringInside       = 576
	ringSeen         = 832
	ringGatesLost    = 1088
)

// Of struct agent_out, and how many there are.
const (
	outAt    = 8
	outBytes = 16
	outs     = 16 // AGENT_OUTS
	holds    = 5  // AGENT_HOLDS
)

// What the gates are wanted for: enum agent_ask.
const (
	askNothing = 0
	askIn      = 1
	askOut     = 2
	askTaken   = 3
	askAll     = 4
)

// Offsets in struct agent_slot, bytes.
const (
	slotTS   = 0
	slotDur  = 8
	slotSeq  = 16
	slotTID  = 20
	slotFunc = 24
	slotKind = 26
	slotFlag = 27
	slotRet  = 28
	slotArgs = 32
)

// Offsets and lengths of the three parts of the text in struct agent_text, bytes.
const (
	textA, textALen = 0, 16
	textB, textBLen = 20, 6
	textC, textCLen = 27, 37
	textLen         = textALen + textBLen + textCLen
)

// Offsets in struct agent_params, bytes.
const (
	paramsMagic     = 0
	paramsABI       = 4
	paramsFD        = 8
	paramsSlots     = 12
	paramsMode      = 16
	paramsOn        = 24
	paramsPeriod    = 32
	paramsDeadline  = 40
	paramsHeartbeat = 48
	paramsHelloAt   = 56
	paramsCUPTI     = 64
	paramsBytes     = 64 + 2*pathBytes
)

// Offsets in struct agent_hello, bytes.
const (
	helloMagic   = 0
	helloABI     = 4
	helloError   = 8
	helloRingFD  = 12
	helloTID     = 16
	helloEntered = 24
	helloLeft    = 32
	helloBytes   = 40
)

// Kinds of slots that are no events: enum agent_kind.
const (
	kindName   = 64
	kindText   = 65
	kindWindow = 66
	kindDevice = 67
	kindOpened = 69
	kindSteps  = 70
	kindHold   = 71
)

// What an AGENT_NAME names: its flags.
const (
	nameKernel = 0
	nameRange  = 1
	nameDevice = 2
)

// devicePart is a flag of a device: a part of a GPU.
const devicePart = 1

// How a window ended: enum agent_end.
const (
	endFinalized = 1
	endDisabled  = 2
	endRefused   = 3
	endKept      = 4
)

// Flags of enum agent_window.
const (
	windowCalls   = 1
	windowOwn     = 2
	windowStarved = 4
)

// What the daemon wants: enum agent_mode.
const (
	modeOff        = 0
	modeWindows    = 1
	modeContinuous = 2
	modeQuit       = 3
)

// What the agent is doing: enum agent_state.
const (
	stateStarting = 0
	stateIdle     = 1
	stateOpening  = 2
	stateOpen     = 3
	stateClosing  = 4
	stateRefused  = 5
	stateGone     = 6
	stateKept     = 7
	stateLeaving  = 8
)

// Why CUPTI cannot be used: enum agent_error.
const (
	errorNoCUPTI      = 1001
	errorNoSymbol     = 1002
	errorTooOld       = 1003
	errorMemory       = 1004
	errorGraphThreads = 1005
	errorBusy         = 39
)
