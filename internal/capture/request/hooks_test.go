package request_test

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/request"
)

// TestOlderHooks: what older kernels offer in place of the tracepoints of sockets shows the same.
func TestOlderHooks(t *testing.T) {
	for i, hooks := range request.Hooks()[1:] {
		undo := request.UseHooks(i + 1)
		t.Run(hooks, sameThroughOtherHooks)
		undo()
	}
}

func sameThroughOtherHooks(t *testing.T) {
	source, err := request.New(request.Options{Mode: mode(t)})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EPERM) {
		t.Skip("needs a kernel with these hooks: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = source.Close()
	for name, test := range map[string]func(*testing.T){
		"times": TestTimes, "streams": TestStreams, "client leaves": TestClientLeaves, "others": TestOthersAreNotSeen,
		"upload": TestLongUpload, "lost": TestLostTransfers, "HTTP/2": TestStreamsOfHTTP2, "TLS": TestTLS,
		"engine": TestEngine,
	} {
		t.Run(name, test)
	}
}
