package query

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/recording/archive"
)

// View is a view that queries are about.
type View struct {
	Name    string
	Doc     string
	Columns []string // in their order

	needs []string // tables that it is made of
	sql   string
}

// recordingsView is on the list of recordings alone.
const recordingsView = "recordings"

// Views returns the views, in the order of their documentation. Times called from_ns, to_ns, start_ns and received_ns
// are ns since 1970.
func Views() []View {
	return []View{
		{
			Name: recordingsView, Doc: "one row for each recording",
			Columns: []string{
				"recording", "node", "pid", "comm", "from_ns", "to_ns", "events", "lost", "triggered", "kernel",
				"cpus", "recorded_by", "wall_offset_ns",
			},
			sql: `SELECT recording, node_name AS node, pid, comm, from_ns, to_ns, events, lost, triggered, kernel, cpus, recorded_by,
 wall_offset_ns FROM base.recordings`,
		},
		{
			Name: "findings", Doc: "what reports say first; a recording without findings has one row with its verdict",
			Columns: []string{
				"recording", "node", "pid", "from_ns", "verdict", "cause", "title", "cost_ns", "share",
				"confidence", "place",
			},
			needs: []string{findingsTable},
			sql: `SELECT r.recording, r.node_name AS node, t.pid, t.from_ns, t.verdict, t.cause, t.title, t.cost_ns, t.share,
 t.confidence, t.place FROM base.findings t JOIN base.recordings r USING (n)`,
		},
		{
			Name: "kernels", Doc: "executions of kernels on GPUs",
			Columns: []string{
				"recording", "node", "pid", "device", "stream", "start_ns", "duration_ns", "name", "grid_x",
				"grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_bytes", "registers", "graph",
			},
			needs: []string{"kernels", "kernel_names"},
			sql: `SELECT r.recording, r.node_name AS node, k.pid, k.device, k.stream, k.start_ns + r.wall_offset_ns AS start_ns,
 k.duration_ns, coalesce(nullif(n.name, ''), '?') AS name, k.grid_x, k.grid_y, k.grid_z, k.block_x, k.block_y, k.block_z,
 k.shared_bytes, n.registers, k.graph
 FROM base.kernels k JOIN base.recordings r USING (n) LEFT JOIN base.kernel_names n ON n.n = k.n AND n.kernel = k.kernel`,
		},
		{
			Name: "idle",
			Doc:  "why GPUs were idle, by cause; watched_ns is the time that all parts, with the busy ones, sum up to",
			Columns: []string{
				"recording", "node", "pid", "from_ns", "device", "device_name", "cause", "idle_ns", "watched_ns",
			},
			needs: []string{gpuTable},
			sql: `SELECT r.recording, r.node_name AS node, t.pid, t.from_ns, t.device, t.device_name, t.part AS cause,
 t.time_ns AS idle_ns, t.watched_ns FROM base.gpu_time t JOIN base.recordings r USING (n) WHERE NOT t.busy`,
		},
		{
			Name: "requests", Doc: "HTTP requests served; what is not known is NULL",
			Columns: []string{
				"recording", "node", "pid", "port", "received_ns", "latency_ns", "ttft_ns", "tpot_ns", "method",
				"route", "model", "status", "outcome", "streamed", "input_tokens", "output_tokens",
				"cached_tokens", "traceparent",
			},
			needs: []string{"requests"},
			sql: `SELECT r.recording, r.node_name AS node, t.pid, t.port, try_cast(t.received_ns AS BIGINT) + r.wall_offset_ns AS received_ns,
 CASE WHEN t.end_ns >= t.received_ns THEN t.end_ns - t.received_ns END AS latency_ns,
 CASE WHEN t.first_token_ns >= t.received_ns THEN t.first_token_ns - t.received_ns END AS ttft_ns,
 CASE WHEN t.output_tokens > 1 AND t.first_token_ns > 0 AND t.last_token_ns >= t.first_token_ns
 THEN (t.last_token_ns - t.first_token_ns) // (t.output_tokens - 1) END AS tpot_ns,
 t.method, t.route, t.model, nullif(t.status, 0) AS status, t.outcome, t.streamed, nullif(t.input_tokens, 0) AS input_tokens,
 nullif(t.output_tokens, 0) AS output_tokens, t.cached_tokens, t.traceparent
 FROM base.requests t JOIN base.recordings r USING (n)`,
		},
		{
			Name: "steps", Doc: "steps of inference engines; NULL: not known",
			Columns: []string{
				"recording", "node", "pid", "engine", "step_ns", "requests", "tokens", "first_tokens", "finished",
				"preempted", "running", "waiting", "kv_usage",
			},
			needs: []string{"steps"},
			sql: `SELECT r.recording, r.node_name AS node, t.pid, t.engine, try_cast(t.ts_ns AS BIGINT) + r.wall_offset_ns AS step_ns,
 t.requests, t.tokens, t.firsts AS first_tokens, t.finished, t.preempted,
 CASE WHEN t.stats THEN t.running END AS running, CASE WHEN t.stats THEN t.waiting END AS waiting,
 CASE WHEN t.stats THEN t.kv_permille / 1000 END AS kv_usage FROM base.steps t JOIN base.recordings r USING (n)`,
		},
		{
			Name: "threads", Doc: "what threads did with their time",
			Columns: []string{
				"recording", "node", "pid", "tid", "from_ns", "thread", "running_ns", "runnable_ns",
				"blocked_ns", "voluntary_switches", "involuntary_switches", "migrations",
			},
			needs: []string{threadsTable},
			sql: `SELECT r.recording, r.node_name AS node, t.pid, t.tid, t.from_ns, t.thread, t.running_ns, t.runnable_ns, t.blocked_ns,
 t.voluntary_switches, t.involuntary_switches, t.migrations FROM base.thread_times t JOIN base.recordings r USING (n)`,
		},
	}
}

// needed returns the tables that a statement with these words is about, the small ones apart. A word after "raw" may be
// any table of recordings.
func needed(words map[string]bool) (tables, small []string) {
	set := map[string]bool{}
	for _, v := range Views() {
		if words[v.Name] {
			for _, t := range v.needs {
				set[t] = true
			}
		}
	}
	if words["raw"] {
		for w := range words {
			if archive.Columns(w) != nil {
				set[w] = true
			}
		}
	}
	for _, t := range slices.Sorted(maps.Keys(set)) {
		if isSmall(t) {
			small = append(small, t)
		} else {
			tables = append(tables, t)
		}
	}
	return tables, small
}

func isSmall(table string) bool {
	return table == findingsTable || table == gpuTable || table == threadsTable
}

// text writes a text of SQL.
func text(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// typed are the types of columns in DuckDB.
var typed = map[string]string{
	"INT32": "INTEGER", "INT64": "BIGINT", "UINT32": "UINTEGER", "UINT64": "UBIGINT", "BOOLEAN": "BOOLEAN",
	"STRING": "VARCHAR",
}

// base defines base.TABLE: the rows of all files, with the number of the recording in column n. Files lie in folders
// called after that number, below root.
func base(table, root string, files []string) string {
	var from string
	if len(files) > 0 {
		list := make([]string, 0, len(files))
		for _, f := range files {
			list = append(list, text(f))
		}
		from = fmt.Sprintf(
			"SELECT CAST(split_part(substr(filename, %d), '/', 1) AS BIGINT) AS n, * EXCLUDE (filename) FROM "+
				"read_parquet([%s], filename=true, union_by_name=true)",
			len([]rune(root))+2,
			strings.Join(list, ", "),
		)
	} else {
		columns := []string{"CAST(NULL AS BIGINT) AS n"}
		for _, c := range archive.Columns(table) {
			columns = append(columns, fmt.Sprintf("CAST(NULL AS %s) AS %q", typed[c.Type], c.Name))
		}
		from = "SELECT " + strings.Join(columns, ", ") + " WHERE false"
	}
	return fmt.Sprintf("CREATE VIEW base.%s AS %s;\n", table, from)
}

// prelude defines all views on the layout, and then shuts everything else out.
func (l *layout) prelude(memory int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "SET memory_limit='%dB';\nSET temp_directory=%s;\n", max(memory, minMemory), text(l.dir+"/spill"))
	b.WriteString("SET autoinstall_known_extensions=false;\nSET autoload_known_extensions=false;\n")
	b.WriteString("CREATE SCHEMA base;\nCREATE SCHEMA raw;\n")
	fmt.Fprintf(
		&b,

		"CREATE VIEW base.recordings AS SELECT file_row_number + 1 AS n, * EXCLUDE (file_row_number) FROM "+
			"read_parquet(%s, file_row_number=true);\n",
		text(l.recordings),
	)
	defined := map[string]bool{}
	define := func(table string) {
		if !defined[table] {
			defined[table] = true
			b.WriteString(base(table, l.dir, l.files[table]))
		}
	}
	for _, v := range Views() {
		for _, t := range v.needs {
			define(t)
		}
		fmt.Fprintf(&b, "CREATE VIEW %s AS %s;\n", v.Name, v.sql)
	}
	for _, t := range l.raw {
		define(t)
		fmt.Fprintf(
			&b,

			"CREATE VIEW raw.%s AS SELECT r.recording, t.* EXCLUDE (n) FROM base.%s t JOIN base.recordings r USING "+
				"(n);\n",
			t,
			t,
		)
	}
	allowed := []string{text(l.dir + "/")}
	for _, f := range l.folders {
		allowed = append(allowed, text(f+"/"))
	}
	fmt.Fprintf(&b, "SET allowed_directories=[%s];\n", strings.Join(allowed, ", "))
	b.WriteString("SET enable_external_access=false;\nSET lock_configuration=true;\n")
	return b.String()
}
