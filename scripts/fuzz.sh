#!/usr/bin/env bash
# Runs every fuzz test for FUZZTIME (default 10s) and prints how often each ran: first guided by Go's fuzzer, then in a
# flood (internal/testkit/fuzzing): what the fuzzer found changed at random, without a look at the code, 10 to 50 times
# as fast.
#   --guided, --flood  only one of the two
#   --table            print FUZZLOG, nothing else
#   FUZZTIME           time for each test, 10s
#   FUZZ               regular expression: only the tests whose "package.Name" it matches
#   FUZZPARALLEL       processes, as many as there are CPUs
#   FUZZLOG            file that the counts are added to, so that the table sums up several runs
# An input that fails is left under testdata/fuzz of its package, to be committed with the repair. The corpus that Go
# finds itself stays in its build cache (go clean -fuzzcache).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
log=${FUZZLOG:-$tmp/log}
parallel=${FUZZPARALLEL:-$(nproc)}
length=${FUZZTIME:-10s}

# What guides the fuzzer: the branches of our packages and of the decoders that get hostile bytes from them. After each
# execution all counters are read, so those of everything else (the JSON, SQLite and logging packages) cost half the
# speed.
instrument=(-gcflags=all=-d=libfuzzer=0)
for path in inferscope/inferscope ulikunitz/xz parquet-go ianlancetaylor/demangle; do
	instrument+=("-gcflags=github.com/$path/...=-d=libfuzzer=1")
done

# list: "package-directory Name", a line for each fuzz test.
list() {
	grep -r --include='*_test.go' -o '^func Fuzz[A-Za-z0-9_]*' internal | grep -v '^internal/testkit/fuzzing/' | sort |
		sed 's|^\(.*\)/[^/]*:func \(Fuzz.*\)$|\1 \2|' | while read -r dir name; do
		if [[ "${dir#internal/}.$name" =~ ${FUZZ:-.} ]]; then echo "$dir $name"; fi
	done
}

# note DIR NAME KIND EXECUTIONS SECONDS INTERESTING FAILURES: a line of the log.
note() { printf '%s.%s\t%s\t%s\t%s\t%s\t%s\n' "${1#internal/}" "$2" "$3" "$4" "$5" "$6" "$7" >>"$log"; }

# guided DIR NAME: Go minimizes each new input for up to a minute unless it is told otherwise, and executes little else
# meanwhile.
guided() {
	local out=$tmp/out status=0 execs seconds found failed=0
	go test "${instrument[@]}" -run '^$' -fuzz "^$2\$" -fuzztime "$length" -fuzzminimizetime 5x \
		-parallel "$parallel" "./$1" >"$out" 2>&1 || status=$?
	# At the end of its time a worker may be told to stop while it answers: golang.org/issue/75804, no finding.
	if [ "$status" != 0 ] && ! { grep -q 'context deadline exceeded' "$out" && ! grep -q 'Failing input' "$out"; }; then
		failed=1
		cat "$out" >&2
	fi
	execs=$(sed -n 's/.*execs: \([0-9]*\).*/\1/p' "$out" | tail -n 1)
	found=$(sed -n 's/.*new interesting: \([0-9]*\).*/\1/p' "$out" | tail -n 1)
	seconds=$(sed -n 's/^fuzz: elapsed: \(.*\), execs.*/\1/p' "$out" | tail -n 1 |
		awk '{
			n = 0
			for (s = $0; match(s, /^[0-9]+[hms]/); s = substr(s, RLENGTH + 1)) {
				u = substr(s, RLENGTH, 1)
				n += substr(s, 1, RLENGTH - 1) * (u == "h" ? 3600 : u == "m" ? 60 : 1)
			}
			print n
		}')
	note "$1" "$2" guided "${execs:-0}" "${seconds:-0}" "${found:-0}" "$failed"
	return "$failed"
}

# flood DIR NAME: the test's own inputs and those of the cache, in several processes.
flood() {
	local binary=$tmp/${1//\//_}.test pids=() failed=0 i execs seconds
	[ -f "$binary" ] || go test -c -o "$binary" "./$1"
	rm -f "$tmp/flood"
	for ((i = 0; i < parallel; i++)); do
		(cd "$1" && GOMAXPROCS=2 INFERSCOPE_FLOOD=$length INFERSCOPE_FLOOD_LOG=$tmp/flood \
			INFERSCOPE_FLOOD_CORPUS="$(go env GOCACHE)/fuzz/github.com/inferscope/inferscope/$1" \
			exec "$binary" -test.run "^$2\$" -test.timeout 0 >"$tmp/flood.$i" 2>&1) &
		pids+=($!)
	done
	for i in "${!pids[@]}"; do
		if ! wait "${pids[$i]}"; then
			failed=1
			tail -n 40 "$tmp/flood.$i" >&2
		fi
	done
	touch "$tmp/flood"
	execs=$(awk '{ n += $2 } END { print n + 0 }' "$tmp/flood")
	seconds=$(awk '{ n = $3 > n ? $3 : n } END { print n / 1e9 }' "$tmp/flood")
	note "$1" "$2" flood "$execs" "$seconds" 0 "$failed"
	return "$failed"
}

# table: the log, summed for each test.
table() {
	sort -s -t "$(printf '\t')" -k 1,1 "$log" | awk -F '\t' '
		function rate(n, s) { return s > 0 ? n / s : 0 }
		function row(k, title) {
			g = execs[k, "guided"]
			f = execs[k, "flood"]
			printf "%-32s %12d %8d %13d %9d %13d %11d %8d\n", title, g, rate(g, seconds[k, "guided"]),
				f, rate(f, seconds[k, "flood"]), g + f, found[k], failed[k]
		}
		{
			if (!($1 in seen)) { names[++n] = $1; seen[$1] = 1 }
			execs[$1, $2] += $3; seconds[$1, $2] += $4; found[$1] += $5; failed[$1] += $6
			execs["", $2] += $3; seconds["", $2] += $4; found[""] += $5; failed[""] += $6
		}
		END {
			printf "%-32s %12s %8s %13s %9s %13s %11s %8s\n", "fuzz test", "guided", "/s", "flood", "/s",
				"executions", "interesting", "failures"
			for (i = 1; i <= n; i++) row(names[i], names[i])
			row("", "total")
		}'
}

kinds=(guided flood)
case "${1:-}" in
--table) table; exit ;;
--guided | --flood) kinds=("${1#--}") ;;
'') ;;
*) die "unknown argument $1: see the head of $0" ;;
esac
use_go
failures=0
for kind in "${kinds[@]}"; do
	while read -r dir name; do
		say "$kind: $name in $dir"
		"$kind" "$dir" "$name" || failures=$((failures + 1))
	done < <(list)
done
table
[ "$failures" = 0 ] || die "$failures fuzz tests failed: their inputs lie under testdata/fuzz of their packages"
