// Command h2server streams tokens over HTTP/2 without TLS and over gRPC, as servers of language models do. Each tells
// when it was about to be written, by CLOCK_MONOTONIC. It prints the ports of the two.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/testkit/h2server"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	rpc, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(web.Addr().(*net.TCPAddr).Port, rpc.Addr().(*net.TCPAddr).Port)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	errs := make(chan error, 2)
	go func() {
		errs <- (&http.Server{Handler: http.HandlerFunc(answer), Protocols: &protocols}).Serve(web)
	}()
	go func() {
		errs <- grpc.NewServer(grpc.ForceServerCodec(h2server.Raw{}), grpc.UnknownServiceHandler(stream)).Serve(rpc)
	}()
	return <-errs
}

// generate calls token for each token, as the question has it.
func generate(q *h2server.Question, token func() error) error {
	time.Sleep(time.Duration(q.PrefillMS) * time.Millisecond)
	for i := range q.MaxTokens {
		if i > 0 {
			time.Sleep(time.Duration(q.GapMS) * time.Millisecond)
		}
		if err := token(); err != nil {
			return err
		}
	}
	return nil
}

func answer(w http.ResponseWriter, r *http.Request) {
	var q h2server.Question
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !q.Stream {
		if generate(&q, func() error { return nil }) == nil {
			_, _ = fmt.Fprintf(w, `{"id":"cmpl-1","choices":[{"text":"secret"}],"usage":{"prompt_tokens":5,"completion_tokens":%d}}`, q.MaxTokens)
		}
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	put := func(format string, args ...any) error {
		_, err := fmt.Fprintf(w, "data: "+format+"\n\n", args...)
		return errors.Join(err, http.NewResponseController(w).Flush())
	}
	if put(`{"id":"chatcmpl-1","choices":[{"delta":{"role":"assistant","content":""}}]}`) != nil {
		return
	}
	err := generate(&q, func() error {
		return put(`{"id":"chatcmpl-1","at":%d,"choices":[{"delta":{"content":"secret"}}]}`, clock.Monotonic())
	})
	if err == nil {
		_ = put(`{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d}}`, q.MaxTokens)
	}
}

func stream(_ any, s grpc.ServerStream) error {
	var body []byte
	if err := s.RecvMsg(&body); err != nil {
		return err
	}
	var q h2server.Question
	if err := json.Unmarshal(body, &q); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	err := generate(&q, func() error {
		token := fmt.Appendf(nil, `secret "at":%d,`, clock.Monotonic())
		return s.SendMsg(&token)
	})
	if err != nil {
		return err
	}
	if q.Fail {
		return status.Error(codes.Unavailable, "secret")
	}
	return nil
}
