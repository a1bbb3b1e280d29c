// Package logfield marks entries of the daemon's log for programs that read them through the API.
package logfield

import "go.uber.org/zap/zapcore"

const reported = "reported"

// Reported marks an entry whose subject every report covers by itself, as a loss or as the state of an agent. It leaves
// no trace in the log's text.
func Reported() zapcore.Field { return zapcore.Field{Key: reported, Type: zapcore.SkipType} }

// IsReported reports whether f is the mark of Reported.
func IsReported(f zapcore.Field) bool { return f.Type == zapcore.SkipType && f.Key == reported }
