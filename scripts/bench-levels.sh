#!/usr/bin/env bash
# What the diagnosis loses at each level of the overhead governor: runs programs of test/diagnosis with one
# source fixed at that level, and prints a row for each (root; about a minute a level on 16 CPUs, LANES=7).
#   LANES  programs that run at once, each on two CPUs of its own (default: 1)
#   ALL=1  all programs of test/diagnosis; otherwise the usual 16
#   ONLY   programs by number, such as 3,17
#   LEVELS  an extended regular expression: only levels that match
#   BUILT=1  builds nothing: bin/inferscoped, build/diagnosis.test, build/cudasim and build/scenarios are there
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
[ "$(id -u)" = 0 ] || die "needs root, as the daemon does"
if [ -z "${BUILT:-}" ]; then
	use_go
	scripts/install-deps.sh demo
	scripts/cudasim.sh
	make -s -C testdata/scenarios
	scripts/build.sh
	(cd test/diagnosis && go test -c -o "$ROOT/build/diagnosis.test" .)
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# All that the daemon knows, but the first of each source, which is full detail.
known=$("$BIN/inferscoped" --pid $$ --socket "$work/socket" --pin-level '?' 2>&1 | sed -n 's/^  \(.*=.*\)/\1/p') || true
mapfile -t levels < <(echo && awk -F= 'seen[$1]++' <<<"$known")
[ ${#levels[@]} -gt 1 ] || die "the daemon lists no levels"
echo "| level | cause named right | healthy programs accused | wrong |"
echo "|---|--:|--:|---|"
for level in "${levels[@]}"; do
	[[ ${level:-everything} =~ ${LEVELS:-.} ]] || continue
	pin=${level%%,*} # a comma separates two sources
	# A level below full detail misses the goal of full detail, which is no error here.
	build/diagnosis.test -test.run 'TestDiagnosis$' -test.timeout 60m -daemon "$BIN/inferscoped" -lanes "${LANES:-1}" \
		${ALL:+-all} ${ONLY:+-only "$ONLY"} ${level:+-pin "$pin"} >"$work/log" 2>&1 || true
	right=$(sed -n 's/^The cause is right in \([0-9]* of [0-9]*\) programs.*/\1/p' "$work/log")
	accused=$(sed -n 's/^The cause.*; \([0-9]* of [0-9]*\) healthy programs.*/\1/p' "$work/log")
	wrong=$(sed -n 's/^| [0-9]* | \([^|]*\) |.*| wrong |$/\1/p' "$work/log" | paste -sd, | sed 's/,/, /g')
	if [ -z "$right" ]; then
		cat "$work/log" >&2
		die "no result at level '${level:-everything}'"
	fi
	echo "| ${level:-everything} | $right | $accused | ${wrong:-} |"
done
