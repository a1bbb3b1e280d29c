package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/capture/helper"
	"github.com/inferscope/inferscope/internal/daemon"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/fleet"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/query"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/report/export"
)

// recordFlags are the flags about recordings on the disk as they were typed.
type recordFlags struct {
	dir     string
	length  time.Duration
	quotaMB int
	maxAge  time.Duration
	freeMB  int
	jsonl   bool

	upload   string // s3://BUCKET/PREFIX
	endpoint string
	region   string
	raw      string
	after    time.Duration
	node     string
}

// minQuotaMB has room for the part that is being written and some that are kept.
const minQuotaMB = 100

func (f *recordFlags) register(set *pflag.FlagSet) {
	set.StringVar(&f.dir, "record-dir", "", "keep recordings of all targets in this directory")
	set.DurationVar(&f.length, "record-length", fleet.DefaultLength,
		"length of each recording; 0: only on command and on triggers")
	set.IntVar(&f.quotaMB, "record-quota-mb", fleet.DefaultQuota/1_000_000,
		"their total size on disk in MB; the oldest are deleted")
	set.IntVar(&f.freeMB, "record-free-mb", fleet.DefaultReserve/1_000_000,
		"disk space to keep free, in MB, whatever the quota")
	set.BoolVar(&f.jsonl, "record-jsonl", false,
		"write the events of each recording as JSON lines, too: TIME-PID-COMM.jsonl.gz beside it")
	set.StringVar(
		&f.upload,
		"upload",
		"",
		"upload recordings to this place in an S3 store, s3://BUCKET/PREFIX, and delete them here once it has them; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws/credentials, or the machine",
	)
	set.StringVar(&f.endpoint, "upload-endpoint", "",
		"address of the store, https://HOST[:PORT]; also AWS_ENDPOINT_URL; AWS if it is left out")
	set.StringVar(&f.region, "upload-region", "", "region of the bucket; also AWS_REGION; asked for if it is left out")
	set.StringVar(
		&f.raw,
		"upload-raw",
		fleet.RawAlways,
		"whose events are uploaded: always (of all recordings), or triggered (of those that a trigger or a command made; of others the small tables, and they stay here)",
	)
	set.DurationVar(&f.after, "upload-after", fleet.DefaultMinAge, "how old a recording is when it is uploaded")
	set.StringVar(&f.node, "node", "",
		"name of this machine in the store; also NODE_NAME; the host's name if it is left out")
	set.DurationVar(&f.maxAge, "record-max-age", fleet.DefaultMaxAge,
		"how long recordings are kept; 0: until there is no room")
}

func (f *recordFlags) check() error {
	bad := func(hint, format string, args ...any) error {
		return clierror.New(clierror.Usage, hint, fmt.Errorf(format, args...))
	}
	if f.length != 0 && (f.length < time.Second || f.length > time.Hour) {
		return bad("choose 1s to 1h, or 0", "--record-length: %s is out of range", f.length)
	}
	if f.quotaMB < minQuotaMB {
		return bad(fmt.Sprintf("choose %d or more", minQuotaMB), "--record-quota-mb: %d is too little", f.quotaMB)
	}
	if f.freeMB < 0 || f.maxAge < 0 {
		return bad("choose 0 or more", "--record-free-mb and --record-max-age: less than nothing")
	}
	if f.raw != fleet.RawAlways && f.raw != fleet.RawTriggered {
		return bad("choose always or triggered", "--upload-raw: %q is not known", f.raw)
	}
	if f.jsonl && f.dir == "" {
		return bad("name a directory for them with --record-dir", "--record-jsonl: JSON lines lie beside recordings")
	}
	if f.upload == "" {
		return nil
	}
	if f.dir == "" {
		return bad("name a directory for them with --record-dir", "--upload: recordings have to lie on the disk first")
	}
	_, _, err := fleet.ParseDestination(f.upload)
	return err
}

// destination returns where recordings are uploaded; nil if they are not.
func (f *recordFlags) destination(environ config.Environment) (*fleet.UploadConfig, error) {
	if f.upload == "" {
		return nil, nil
	}
	bucket, prefix, err := fleet.ParseDestination(f.upload)
	if err != nil {
		return nil, err
	}
	u := &fleet.UploadConfig{
		Bucket:   bucket,
		Prefix:   prefix,
		Endpoint: f.endpoint,
		Region:   f.region,
		Raw:      f.raw,
		MinAge:   f.after,
		Node:     f.node,
	}
	first := func(to *string, names ...string) {
		for _, name := range names {
			if v, ok := environ.Get(name); ok && *to == "" {
				*to = v
			}
		}
	}
	first(&u.Endpoint, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
	first(&u.Region, "AWS_REGION", "AWS_DEFAULT_REGION")
	first(&u.Node, "NODE_NAME")
	if u.Node == "" {
		if u.Node, err = os.Hostname(); err != nil {
			return nil, clierror.New(clierror.General, "name this machine with --node", err)
		}
	}
	u.Node = fleet.Safe(u.Node)
	return u, nil
}

// connect configures the daemon to store recordings, if requested.
func (f *recordFlags) connect(cfg *daemon.Config, s config.Settings, environ config.Environment, logger *zap.Logger) {
	if f.dir == "" {
		return
	}
	cfg.Record = func(facts func(api.Facts)) (*fleet.Process, error) {
		dir, err := filepath.Abs(f.dir)
		if err != nil {
			return nil, err
		}
		socket, err := filepath.Abs(cfg.Socket)
		if err != nil {
			return nil, err
		}
		c := fleet.Config{
			Socket: socket, Dir: dir, Length: f.length, MaxAge: f.maxAge,
			Quota: int64(f.quotaMB) * 1_000_000, Reserve: int64(f.freeMB) * 1_000_000, Lines: f.jsonl,
			Think: facts != nil,
		}
		if c.Upload, err = f.destination(environ); err != nil {
			return nil, err
		}
		if c.Triggers, err = triggers(s); err != nil {
			return nil, err
		}
		return fleet.Start([]string{self}, helper.Record.Give, c, facts, logger)
	}
}

// triggers parses the settings of the flight recorder.
func triggers(s config.Settings) (t fleet.Triggers, err error) {
	t = fleet.Triggers{Memory: s.TriggerMemory, Exit: s.TriggerExit, PerDay: s.TriggerPerDay}
	for _, one := range []struct {
		to      *fleet.Threshold
		text    string
		percent bool
	}{{&t.Iteration, s.TriggerIteration, false}, {&t.GPUBusy, s.TriggerGPUBusy, true}, {&t.Errors, s.TriggerErrors, true}} {
		if *one.to, err = fleet.ParseThreshold(one.text, one.percent); err != nil {
			return t, err
		}
	}
	if t.Cooldown, err = time.ParseDuration(s.TriggerCooldown); err != nil || t.Cooldown < 0 {
		return t, clierror.New(clierror.Usage, "write it like 5m",
			fmt.Errorf("trigger_cooldown: %.128q is not a time", s.TriggerCooldown))
	}
	return t, nil
}

// analyze finds what a recording shows, by the same analysis as reports.
func analyze(rec *recording.Recording) fleet.Facts {
	r := analysis.Run(rec)
	f := fleet.Facts{Idle: map[string]uint64{}}
	if it := r.Diagnosis.Iterations; it != nil {
		f.Iterations, f.P50, f.Durations = it.Count, it.P50, it.Durations
	}
	if r.GPU != nil && r.GPU.Recorded {
		f.Watched = r.Diagnosis.Breakdown.Time
		for i := range r.Diagnosis.Breakdown.Parts {
			if p := &r.Diagnosis.Breakdown.Parts[i]; p.Busy {
				f.Busy += p.Time
			} else {
				f.Idle[p.Key] += p.Time
			}
		}
	}
	if r.Exchanged != nil {
		f.Hangs = uint64(len(r.Exchanged.Hangs))
	}
	for i := range r.Calls.Functions {
		if fn := &r.Calls.Functions[i]; fn.Timed {
			f.Calls, f.Errors = f.Calls+fn.Count-fn.Untimed, f.Errors+fn.Errors
		}
	}
	return f
}

// maxRead bounds the memory for reading a recording to make its small tables, in bytes.
const maxRead = 512 << 20

// tables makes the small tables of a recording from its analysis. A recording that is too large to be read has none.
func tables(ctx context.Context, folder string, r fleet.Row) ([]fleet.SmallTable, error) {
	rec, err := archive.ReadContext(ctx, folder, archive.LimitsFor(maxRead))
	if err != nil {
		return nil, ctx.Err()
	}
	return query.Tables(rec, r)
}

// jsonLines writes the events of a recording as JSON lines, as inferscope export does.
func jsonLines(ctx context.Context, folder string, out io.Writer) error {
	rec, err := archive.ReadContext(ctx, folder, archive.LimitsFor(maxRead))
	if err != nil {
		return err
	}
	format, ok := export.Find("jsonl")
	if !ok {
		return errors.New("there is no such format")
	}
	return format.Write(out, rec)
}

// recorderHelper is the helper process that stores recordings.
func recorderHelper([]string) error {
	runtime.GOMAXPROCS(1) // it has time
	helper.Record.Take()
	logger, err := newLogger(os.Stderr, "info", "console")
	if err != nil {
		return err
	}
	defer func() { _ = logger.Sync() }()
	return fleet.RunHelper(os.Stdin, os.Stdout, logger, func(w *fleet.Worker, dir string) {
		w.SetThink(analyze)
		w.SetTables(tables)
		w.SetLines(jsonLines)
		if err := recorderConfined(dir); err != nil {
			logger.Warn("the process that keeps recordings has more rights than it needs; the rest goes on",
				zap.Error(err))
		}
	})
}
