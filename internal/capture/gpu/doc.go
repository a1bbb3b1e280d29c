// Package gpu is the source of GPU activity: what the agent, a small shared object in the
// target (folder agent), saw of kernels, copies and launches through CUPTI. It brings the
// agent into processes that use CUDA, tells it when to record, and reads its ring.
//
// One session per process: wait for libcuda, look for an agent that is there already, else
// inject one, then map its ring (session.go). A goroutine of its own tells every agent four
// times a second that the daemon lives, because an agent that hears nothing for 1.5 s ends
// itself (beat.go). The drain goroutine empties the rings (feed.go). Everything that comes out
// of a ring is the target's word and may be hostile: its size and seals are checked before it is
// mapped (open.go), each slot is copied once and then checked (decode.go), and what is
// remembered of it is bounded (names.go, windows.go).
package gpu
